// The C ABI: choosing a variant, running recorded programs, sampling.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "attention_plan.h"
#include "pool.h"
#include "tasks.h"

#if TS_HAVE_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if TS_HAVE_NEON_DOT
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define TS_API extern "C" __attribute__((visibility("default")))

extern const Kernels kernels_portable;
#if TS_HAVE_PORTABLE_FMA
extern const Kernels kernels_portable_fma;
#endif
#if TS_HAVE_AVX2
extern const Kernels kernels_avx2;
#endif
#if TS_HAVE_AVX512
extern const Kernels kernels_avx512;
#endif
#if TS_HAVE_NEON
extern const Kernels kernels_neon;
#endif
#if TS_HAVE_NEON_DOT
extern const Kernels kernels_neon_dot;
#endif

namespace {

struct Variant {
  const char* name;
  const Kernels* kernels;
  bool runs_here;
  bool amx = false;
};

#if TS_HAVE_AMX
// The matrix unit's registers are large: Linux gives them to a process that asks.
bool may_use_amx() {
  static const bool may = [] {
    constexpr unsigned BF16_PRODUCTS = 1u << 22, TILES = 1u << 24, INT8_PRODUCTS = 1u << 25;
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (~d & (BF16_PRODUCTS | TILES | INT8_PRODUCTS))) return false;
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  }();
  return may;
}
#endif

// Best first.
std::vector<Variant> variants() {
  std::vector<Variant> all;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool fma = __builtin_cpu_supports("avx") && __builtin_cpu_supports("fma");
#endif
#if TS_HAVE_AVX512
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#if TS_HAVE_AMX
  all.push_back({"amx", &kernels_avx512, avx512 && may_use_amx(), true});
#endif
  all.push_back({"avx512", &kernels_avx512, avx512});
#endif
#if TS_HAVE_AVX2
  all.push_back({"avx2", &kernels_avx2, fma && __builtin_cpu_supports("avx2")});
#endif
#if TS_HAVE_NEON_DOT
  all.push_back({"neon_dot", &kernels_neon_dot, (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0});
#endif
#if TS_HAVE_NEON
  all.push_back({"neon", &kernels_neon, true});
#endif
#if TS_HAVE_PORTABLE_FMA
  all.push_back({"portable_fma", &kernels_portable_fma, fma});
#endif
  all.push_back({"portable", &kernels_portable, true});
  return all;
}

// No kernels when there is none of that name.
Variant find_variant(const char* name) {
  for (const Variant& v : variants())
    if (v.runs_here && (*name == 0 || std::strcmp(name, v.name) == 0)) return v;
  return {name, nullptr, false};
}

// 64-byte aligned memory that is touched only as it is used.
struct Aligned {
  explicit Aligned(int64_t bytes) {
    void* memory = nullptr;  // not std::aligned_alloc, which macOS has from 10.15 on only
    if (posix_memalign(&memory, 64, (bytes + 63) / 64 * 64 + 64) != 0) throw std::bad_alloc();
    data = static_cast<uint8_t*>(memory);
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  uint8_t* data;
};

int64_t padded16(int64_t n) { return (n + 15) / 16 * 16; }

int64_t scratch_bytes(const std::vector<Op>& ops) {
  int64_t most = 0;
  for (const Op& op : ops) {
    if (op.kind == LINEAR) {
      int64_t bytes = 2 * MAX_BLOCK_ROWS * PANEL * 4;
      const bool is_integer = op.weight.format == INT8 || op.weight.format == U4;
      if (is_integer) bytes += std::max<int64_t>(PANEL * (op.weight.k + 8 * (op.weight.k / op.weight.group)), AMX_WIDE);
      else bytes += 2 * WIDE_FEATURES * PANEL * 4;
      most = std::max(most, bytes);
    } else if (op.kind == ATTENTION) {
      const int64_t dp = padded16(op.head_dim);
      most = std::max<int64_t>(most, 4 * (SPLIT_MAX_ROWS * (KEY_PARTITION + 2 * dp) + KEY_PARTITION / PANEL * (2 * PANEL * dp + 2 * PANEL)));
    }
  }
  return most;
}

// The stages of one step: which operation, which stage of it, how many tasks.
struct Stage {
  int op, stage, tasks;
};

class Program : public Job {
 public:
  Program(const Op* ops, int num_ops, const KVCache* kv, int max_rows, const Variant& variant, int threads)
      : ops_(ops, ops + num_ops), kv_(*kv), kernels_(variant.kernels), threads_(threads) {
    int64_t k = 1, groups = 1;
    for (const Op& op : ops_) {
      if (op.kind != LINEAR || !act_bytes(op.weight)) continue;
      k = std::max<int64_t>(k, op.weight.k * act_bytes(op.weight));
      groups = std::max<int64_t>(groups, op.weight.k / op.weight.group);
    }
    act_q_ = std::make_unique<Aligned>(k * max_rows + READ_BEYOND);
    act_scales_ = std::make_unique<Aligned>(groups * max_rows * 8);
    scratch_stride_ = (scratch_bytes(ops_) + 4095) / 4096 * 4096;
    scratch_ = std::make_unique<Aligned>(scratch_stride_ * std::max(1, std::min(threads_, MAX_THREADS)));
    run_ = {nullptr, &kv_, &plan_, act_q_->data, reinterpret_cast<float*>(act_scales_->data),
            reinterpret_cast<float*>(act_scales_->data) + groups * max_rows, threads, variant.amx};
  }

  void execute(const Step& step) {
    run_.step = &step;
    plan_attention(step);
    stages_.clear();
    for (int i = 0; i < static_cast<int>(ops_.size()); ++i) add_stages(i, step);
    run_job(*this, threads_);
  }

  int64_t keys_read() const { return plan_.keys_read; }

  int num_stages() const override { return static_cast<int>(stages_.size()); }
  int num_tasks(int stage) const override { return stages_[stage].tasks; }
  void run(int stage, int task, int thread) override {
    const Stage& s = stages_[stage];
    kernels_->run(ops_[s.op], run_, s.stage, task, scratch_->data + scratch_stride_ * thread);
  }

 private:
  void add_stages(int i, const Step& step) {
    const Op& op = ops_[i];
    const int rows = rows_of(op, step);
    const int row_tasks = rows == 0 ? 0 : ceil_div(rows, rows_per_task(op, rows));
    if (op.kind == LINEAR) {
      if (act_bytes(op.weight)) stages_.push_back({i, 0, ceil_div(rows, LEAST_TILE_ROWS)});
      const LinearGrid grid(op, rows, threads_, run_.amx);
      stages_.push_back({i, 1, grid.row_blocks * grid.chunks});
    } else if (op.kind == ATTENTION) {
      stages_.push_back({i, 0, static_cast<int>(plan_.tasks.size()) * op.num_kv_heads});
      if (!plan_.merges.empty()) stages_.push_back({i, 1, static_cast<int>(plan_.merges.size()) * op.num_kv_heads});
    } else {
      stages_.push_back({i, 0, row_tasks});
    }
  }

  void plan_attention(const Step& step) {
    for (const Op& op : ops_) {
      if (op.kind != ATTENTION) continue;
      AttentionPlanner planner(op, kv_, step, plan_);
      planner.make();
      const size_t floats = planner.num_slots() * op.num_kv_heads * (padded16(op.head_dim) + 2);
      if (plan_.partials.size() < floats) plan_.partials.resize(floats);
      return;  // every layer's is the same
    }
  }

  std::vector<Op> ops_;
  KVCache kv_;
  const Kernels* kernels_;
  int threads_;
  std::unique_ptr<Aligned> act_q_, act_scales_, scratch_;
  int64_t scratch_stride_ = 0;
  std::vector<Stage> stages_;
  AttentionPlan plan_;
  Run run_{};
};

class SampleJob : public Job {
 public:
  SampleJob(const Kernels* kernels, const float* logits, int64_t stride, int vocab, const SampleArgs* args, int num_rows,
            SampleResult* results, int32_t* top_ids, float* top_logprobs, int max_top, int threads)
      : kernels_(kernels), logits_(logits), stride_(stride), vocab_(vocab), args_(args), num_rows_(num_rows), results_(results),
        top_ids_(top_ids), top_logprobs_(top_logprobs), max_top_(max_top), scratch_(8 * stride_of(vocab) * threads) {}
  int num_stages() const override { return 1; }
  int num_tasks(int) const override { return num_rows_; }
  void run(int, int task, int thread) override {
    float* work = reinterpret_cast<float*>(scratch_.data) + 2 * stride_of(vocab_) * thread;
    const SampleArgs& a = args_[task];
    kernels_->sample(logits_ + a.row * stride_, vocab_, a, work, reinterpret_cast<int32_t*>(work + stride_of(vocab_)), results_ + task,
                     top_ids_ + int64_t(task) * max_top_, top_logprobs_ + int64_t(task) * max_top_);
  }

 private:
  static int64_t stride_of(int vocab) { return padded16(int64_t(vocab) + 1); }

  const Kernels* kernels_;
  const float* logits_;
  int64_t stride_;
  int vocab_;
  const SampleArgs* args_;
  int num_rows_;
  SampleResult* results_;
  int32_t* top_ids_;
  float* top_logprobs_;
  int max_top_;
  Aligned scratch_;
};

class ProbeJob : public Job {
 public:
  ProbeJob(const Variant& variant, int kind, const uint8_t* data, int64_t bytes, int threads)
      : variant_(variant), kind_(kind), data_(data), bytes_(bytes / threads / 4096 * 4096), done_(threads), threads_(threads) {}
  int num_stages() const override { return 1; }
  int num_tasks(int) const override { return threads_; }
  void run(int, int task, int) override {
    float sink = 0.0f;
    done_[task] = variant_.kernels->probe(kind_, variant_.amx, data_ + task * bytes_, bytes_, &sink) + (sink == 0.12345f);
  }
  int64_t done() const {
    int64_t total = 0;
    for (int64_t d : done_) total += d;
    return total;
  }

 private:
  Variant variant_;
  int kind_;
  const uint8_t* data_;
  int64_t bytes_;
  std::vector<int64_t> done_;
  int threads_;
};

}  // namespace

// Names of the variants, best first, separated by spaces; those that this processor cannot run carry a '-' in front.
TS_API void ts_variants(char* out, int size) {
  std::string names;
  for (const Variant& v : variants()) names += std::string(names.empty() ? "" : " ") + (v.runs_here ? "" : "-") + v.name;
  std::strncpy(out, names.c_str(), size - 1);
  out[size - 1] = 0;
}

// Sizes of the shared structs, so that the Python side can refuse a library of another build.
TS_API void ts_struct_sizes(int32_t* out) {
  const int32_t sizes[] = {sizeof(Op), sizeof(KVCache), sizeof(Step), sizeof(SampleArgs), sizeof(SampleResult)};
  std::memcpy(out, sizes, sizeof sizes);
}

// A program over `num_ops` operations for steps of at most `max_rows` rows; 0 when the variant is unknown or memory is short.
TS_API void* ts_program_create(const Op* ops, int num_ops, const KVCache* kv, int max_rows, const char* variant, int threads) {
  const Variant found = find_variant(variant);
  if (!found.kernels) return nullptr;
  try {
    return new Program(ops, num_ops, kv, max_rows, found, std::max(1, threads));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
TS_API void ts_program_run(void* program, const Step* step) { static_cast<Program*>(program)->execute(*step); }
// The keys that the last step's attention has read, for one layer and kv head; shared ones that were read once count once.
TS_API int64_t ts_program_keys_read(void* program) { return static_cast<Program*>(program)->keys_read(); }
TS_API void ts_program_free(void* program) { delete static_cast<Program*>(program); }

// Sample `num_rows` rows; returns 0, or -1 when the variant is unknown.
TS_API int ts_sample(const char* variant, int threads, const float* logits, int64_t stride, int vocab, const SampleArgs* args,
                     int num_rows, SampleResult* results, int32_t* top_ids, float* top_logprobs, int max_top) {
  const Kernels* kernels = find_variant(variant).kernels;
  if (!kernels) return -1;
  threads = std::max(1, std::min(threads, num_rows));
  SampleJob job(kernels, logits, stride, vocab, args, num_rows, results, top_ids, top_logprobs, max_top, threads);
  run_job(job, threads);
  return 0;
}

// Run a probe of the machine's ceilings on all threads; returns the multiply-adds done, or -1.
TS_API int64_t ts_probe(const char* variant, int threads, int kind, const uint8_t* data, int64_t bytes) {
  const Variant found = find_variant(variant);
  if (!found.kernels) return -1;
  ProbeJob job(found, kind, data, bytes, std::max(1, threads));
  run_job(job, threads);
  return job.done();
}
