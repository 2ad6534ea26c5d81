// One process-wide thread pool. A job is a list of stages, each a number of independent tasks; a stage begins when
// every task of the one before it has ended. Each thread has a share of every stage, the same part of its tasks: what it
// wrote in one stage is in its cache for the next. Who is done helps the others, so a thread that the operating system has
// descheduled delays them only while it holds a task.
#pragma once
#include <cstdint>

struct Job {
  virtual int num_stages() const = 0;
  virtual int num_tasks(int stage) const = 0;
  virtual void run(int stage, int task, int thread) = 0;
  virtual ~Job() = default;
};

// Run the job on `num_threads` threads, the caller being one of them. Jobs of several engines take turns.
void run_job(Job& job, int num_threads);

constexpr int MAX_THREADS = 256;
