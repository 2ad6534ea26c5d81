#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr auto SPIN = std::chrono::microseconds(50);

// wait: sleep until *word != seen. wake: wake all threads that sleep on it. A futex on Linux, else a condition variable.
class Gate {
 public:
  void wait(std::atomic<uint32_t>& word, uint32_t seen) {
    sleepers_.fetch_add(1);
#if defined(__linux__)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
    std::unique_lock<std::mutex> lock(mutex_);
    condition_.wait(lock, [&] { return word.load() != seen; });
#endif
    sleepers_.fetch_sub(1);
  }
  void wake(std::atomic<uint32_t>& word) {
    if (sleepers_.load() == 0) return;
#if defined(__linux__)
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, MAX_THREADS, nullptr, nullptr, 0);
#else
    std::lock_guard<std::mutex> lock(mutex_);
    condition_.notify_all();
#endif
    (void)word;
  }

 private:
  std::atomic<int> sleepers_{0};
#if !defined(__linux__)
  std::mutex mutex_;
  std::condition_variable condition_;
#endif
};

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Floating-point control is the same in every thread while a job runs: round to nearest, denormals kept.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    set(0);
  }
  ~FloatMode() { set(saved_); }

 private:
  static void set(uint64_t control) { asm volatile("msr fpcr, %0" ::"r"(control)); }
  uint64_t saved_;
#else
  FloatMode() {}
#endif
};

class Pool {
 public:
  void run(Job& job, int num_threads) {
    std::lock_guard<std::mutex> turn(turn_);
    FloatMode mode;
    const int last = job.num_stages();
    if (num_threads <= 1) {
      for (int stage = 0; stage < last; ++stage)
        for (int task = 0, n = job.num_tasks(stage); task < n; ++task) job.run(stage, task, 0);
      return;
    }
    start_workers(num_threads - 1);
    job_ = &job;
    last_ = last;
    active_ = num_threads;
    epoch_ = (epoch_ + 1) & 0xFFFFFF;
    done_.store(0, std::memory_order_relaxed);
    open_from(0, 0);
    take_part(0);
    // The job goes out of scope: wait until no worker reads it any more. A descheduled one may need this processor, so yield.
    for (int spins = 0; inside_.load() != 0; ++spins) {
      pause_cpu();
      if (spins > 1000) std::this_thread::yield();
    }
  }

 private:
  // A ticket: epoch (24 bits) | stage (20) | next task of a share (20). Stage END: no job. `turnstile_` changes with every
  // stage and is what threads sleep on.
  static constexpr int TASK_BITS = 20;
  static constexpr uint64_t TASK_MASK = (1u << TASK_BITS) - 1;
  static constexpr int END = TASK_MASK;
  static constexpr int MAX_SHARES = 8;  // a thread that is done looks at all of them
  static uint64_t stage_key(uint64_t ticket) { return ticket >> TASK_BITS; }
  static int stage_of(uint64_t key) { return static_cast<int>(key & TASK_MASK); }

  // Fewer where the system refuses more: every job runs with as many as there are.
  void start_workers(int count) {
    while (static_cast<int>(workers_.size()) < count) {
      const int id = static_cast<int>(workers_.size()) + 1;
      try {
        workers_.emplace_back([this, id] { work(id); });
      } catch (const std::system_error&) {
        return;
      }
      workers_.back().detach();
    }
  }

  // Open the next stage that has several tasks, or the end. A single task is run here at once, which saves waking the others.
  void open_from(int stage, int thread) {
    Job* job = job_.load(std::memory_order_relaxed);
    const int last = last_.load(std::memory_order_relaxed);
    for (; stage < last && job->num_tasks(stage) <= 1; ++stage)
      if (job->num_tasks(stage) == 1) job->run(stage, 0, thread);
    const uint64_t next = stage < last ? stage : END;
    for (int i = num_shares() - 1; i >= 0; --i) tickets_[i].value.store((epoch_ << (2 * TASK_BITS)) | (next << TASK_BITS));
    turnstile_.fetch_add(1);
    gate_.wake(turnstile_);
  }

  int num_shares() const { return std::min(active_.load(std::memory_order_relaxed), MAX_SHARES); }
  // The first share is never empty: no stage ends before its last ticket is out.
  static int64_t share_begin(int64_t num_tasks, int share, int shares) { return (num_tasks * share + shares - 1) / shares; }

  // Work on the current job until its last stage has ended: on this thread's share of each stage, then on what others have left.
  void take_part(int thread) {
    const int shares = num_shares(), own = thread % shares;
    int share = own, exhausted = 0, finished = 0;  // shares in a row; tasks that are not yet told
    for (uint64_t seen = 0;;) {
      const uint64_t ticket = tickets_[share].value.fetch_add(1, std::memory_order_acq_rel);
      const uint64_t key = stage_key(ticket);
      const int stage = stage_of(key);
      if (stage == END) return;
      if (finished > 0 && key != seen) {  // of the stage before: it has yet to change
        pause_cpu();
        continue;
      }
      Job* job = job_.load(std::memory_order_relaxed);
      const int num_tasks = job->num_tasks(stage);
      const int64_t task = share_begin(num_tasks, share, shares) + (ticket & TASK_MASK);
      const bool is_new = key != seen;  // a stage that has begun while this thread was busy elsewhere
      seen = key;
      if (task < share_begin(num_tasks, share + 1, shares)) {
        job->run(stage, static_cast<int>(task), thread);
        ++finished;
        exhausted = 0;
        if (is_new) share = own;
        continue;
      }
      const int told = std::exchange(finished, 0);
      if (told > 0 && done_.fetch_add(told, std::memory_order_acq_rel) + told == num_tasks) {
        done_.store(0, std::memory_order_relaxed);
        open_from(stage + 1, thread);
      } else if (++exhausted < shares) {
        share = (share + 1) % shares;
        continue;
      } else {
        await(key);
      }
      share = own;
      exhausted = 0;
    }
  }

  // Wait until the tickets have left `key`: spin, then sleep.
  void await(uint64_t key) {
    auto left = [&] { return stage_key(tickets_[0].value.load(std::memory_order_acquire)) != key; };
    const auto until = std::chrono::steady_clock::now() + SPIN;
    do {
      for (int i = 0; i < 64; ++i) {
        if (left()) return;
        pause_cpu();
      }
    } while (std::chrono::steady_clock::now() < until);
    for (;;) {
      const uint32_t seen = turnstile_.load();
      if (left()) return;
      gate_.wait(turnstile_, seen);
    }
  }

  void work(int thread) {
    FloatMode mode;
    for (;;) {
      inside_.fetch_add(1);
      const uint64_t key = stage_key(tickets_[0].value.load());
      const bool joins = stage_of(key) != END && thread < active_.load();
      if (joins) take_part(thread);
      inside_.fetch_sub(1);
      if (!joins) await(key);
    }
  }

  std::mutex turn_;
  std::vector<std::thread> workers_;
  std::atomic<Job*> job_{nullptr};
  std::atomic<int> last_{0};
  std::atomic<int> active_{0};
  uint64_t epoch_ = 0;
  struct alignas(64) Ticket {
    std::atomic<uint64_t> value{uint64_t(END) << TASK_BITS};
  };
  Ticket tickets_[MAX_SHARES];  // the first is the last to change
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<uint32_t> turnstile_{0};
  std::atomic<int> inside_{0};
  Gate gate_;
};

Pool* pool = nullptr;
std::once_flag pool_once;

// A forked child has none of the parent's threads: it starts with a new pool, the old one is left alone.
void after_fork_in_child() { pool = new Pool; }

}  // namespace

void run_job(Job& job, int num_threads) {
  std::call_once(pool_once, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
  });
  pool->run(job, num_threads < MAX_THREADS ? num_threads : MAX_THREADS);
}
