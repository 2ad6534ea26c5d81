// How operations are cut into tasks: shared by the runtime, which counts them, and the kernels, which run them.
// No cut ever changes a bit of a result.
#pragma once
#include <algorithm>
#include <vector>

#include "abi.h"

constexpr int PANEL = 16;           // output columns of a weight panel
constexpr int MAX_BLOCK_ROWS = 256;
constexpr int WIDE_FEATURES = 128;  // of float weights, widened at a time
constexpr int SPLIT_MAX_ROWS = 24;  // a sequence with at most this many query rows may have its partitions run apart
constexpr int KEY_PARTITION = 256;
constexpr int AMX_RUN = 128;        // features that the matrix unit multiplies before their sums are scaled, if a group has no more
constexpr int AMX_WIDE = 2 * PANEL * (512 + 32);  // bytes of two panels that amx.h widens at a time
constexpr int READ_BEYOND = 4096;  // bytes after prepared activations that amx.h may read, for rows that are not there
constexpr int MAX_HEAD_DIM = 512;  // kernels/recorder.py refuses more

inline int rows_of(const Op& op, const Step& step) { return op.rows == TOKENS ? step.num_tokens : step.num_logits; }
// Bytes that an activation takes once it is quantized, or split into parts, for these weights; 0: it is multiplied as it is.
inline int act_bytes(const Weight& w) { return w.format == U4 ? 1 : w.format == INT8 ? 2 : w.format == BF16X2 ? 4 : 0; }
inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Rows of a block of a linear operation, which share one pass over each panel of weights. Their activations should stay in L2,
// which is large where there is a matrix unit.
inline int block_rows(const Op& op, bool amx) {
  if (op.weight.format == BF16X2) return std::clamp((1 << 20) / (act_bytes(op.weight) * op.weight.k) / 32 * 32, 32, 128);
  return amx && op.weight.format == U4 ? MAX_BLOCK_ROWS : 128;
}

// A linear operation's grid: row blocks x runs of panels.
struct LinearGrid {
  int units;           // panels, or gate/up pairs of panels
  int units_per_task;
  int chunks;          // tasks of one row block
  int row_blocks;
  LinearGrid(const Op& op, int rows, int threads, bool amx) {
    const int panels = ceil_div(op.weight.n, PANEL);
    units = op.silu_mul ? panels / 2 : panels;
    row_blocks = ceil_div(rows, block_rows(op, amx));
    units_per_task = std::max(1, units / (threads * 8));
    chunks = ceil_div(units, units_per_task);
  }
};

// Preparing a linear operation's activations (act_bytes), by row blocks: as many tasks as a block could have tiles at most. A task
// is a tile, or a run of a tile's groups: two threads that write to the same lines of memory would wait for each other.
constexpr int LEAST_TILE_ROWS = 4;
inline int prepare_tasks(const Op& op, bool amx) { return block_rows(op, amx) / LEAST_TILE_ROWS; }  // of a whole row block

// Row-wise operations: a few rows a task, so that small steps stay on one thread and large ones spread. A row's keys go to as
// many lines of memory as a head has features: two rows are worth a thread, but neighbours of a prompt write to the same lines.
inline int rows_per_task(const Op& op, int rows) {
  if (op.kind == ROPE_AND_CACHE) return rows <= 64 ? 2 : 16;
  return rows <= 4 ? 4 : 8;
}

// Query rows of one sequence, and where the partials of its partitions lie: `slot` counts rows of a kv head.
struct RowRun {
  int seq, first_row, tokens;
  int partitions;
  int64_t slot;
};

// Attention tasks of a step, the same for every layer and kv head (attention_plan.h makes them).
struct AttentionTask {
  int first_run, num_runs;  // several: sequences that have blocks in common
  int partition;            // -1: all partitions, folded on the spot
  int shared;               // keys before this position lie in the same blocks for all the runs
};
struct AttentionPlan {
  std::vector<RowRun> runs;
  std::vector<AttentionTask> tasks;
  std::vector<int> merges;      // runs whose partitions are computed apart
  std::vector<float> partials;  // [slot][kv_head][rows][padded head_dim + 2]
  int64_t keys_read = 0;        // by all tasks, for one layer and kv head
};

// Everything a task may touch besides its operation.
struct Run {
  const Step* step;
  const KVCache* kv;
  AttentionPlan* plan;
  uint8_t* act_q;      // prepared activations of the current linear operation
  float* act_scale;
  float* act_sum;
  int threads;
  bool amx;  // the matrix unit may be used
};

struct Kernels {
  const char* name;
  // One task of one stage of an operation. LINEAR: stage 0 prepares activations, where the weights ask for it, stage 1 multiplies.
  // ATTENTION: stage 0 runs partitions, stage 1 merges them.
  void (*run)(const Op& op, const Run& run, int stage, int task, uint8_t* scratch);
  // One row of sampling; `work` holds vocab floats, `order` vocab + 1 int32.
  void (*sample)(const float* logits, int vocab, const SampleArgs& args, float* work, int32_t* order, SampleResult* result,
                 int32_t* top_ids, float* top_logprobs);
  // A ceiling of the machine (probe.h): 0 read bandwidth, 1 f32, 2 int16, 3 four bits x int8, 4 bf16 in parts; the last three
  // of the matrix unit, if it is meant.
  int64_t (*probe)(int kind, bool amx, const uint8_t* data, int64_t bytes, float* sink);
};
