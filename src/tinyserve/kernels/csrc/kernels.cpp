// The kernels of one instruction set: this file is compiled once for each, with TS_ISA_<NAME> defined.
#include "attention.h"
#include "elementwise.h"
#include "gemm.h"
#include "probe.h"
#include "sample.h"
#include "tasks.h"

namespace {

static_assert(PANEL == LANES && KEY_PARTITION == PARTITION && MAX_ROWS_PER_TASK == ROW_BLOCK && SPLIT_MAX_ROWS == TILE_ROWS,
              "tasks.h and the kernels agree");

template <class F>
TS_INLINE void for_rows(int rows, int task, F&& f) {
  const int per = rows_per_task(rows);
  for (int row = task * per; row < rows && row < (task + 1) * per; ++row) f(row);
}

// ---- linear -----------------------------------------------------------------------------------------------------

void quantize_rows(const Op& op, const Run& run, int task) {
  const Weight& w = op.weight;
  for_rows(rows_of(op, *run.step), task, [&](int row) {
    const float* x = op.in.data + row * op.in.stride;
    float* scale = run.act_scale + row * run.act_groups;
    float* sum = run.act_sum + row * run.act_groups;
    if (w.format == U4) quantize_row(x, w.k, w.group, (int8_t*)run.act_q + int64_t(row) * w.k, scale, sum);
    else quantize_row(x, w.k, w.group, (int16_t*)run.act_q + int64_t(row) * w.k, scale, sum);
  });
}

TS_INLINE void finish_unit(const Op& op, int unit, int row, vf x, const float* up) {
  if (op.silu_mul) {
    if (op.vector) x = add(x, load(op.vector + 2 * unit * LANES));
    vf u = load(up);
    if (op.vector) u = add(u, load(op.vector + (2 * unit + 1) * LANES));
    x = mul(silu(x), u);
  } else if (op.vector) {
    x = add(x, load(op.vector + unit * LANES));
  }
  if (op.residual.data) x = add(load(op.residual.data + row * op.residual.stride + unit * LANES), x);
  store(op.out.data + row * op.out.stride + unit * LANES, x);
}

void linear(const Op& op, const Run& run, int task, uint8_t* scratch) {
  const Weight& w = op.weight;
  const int all_rows = rows_of(op, *run.step);
  const LinearGrid grid(op, all_rows, run.threads);
  const int first = task / grid.chunks * ROW_BLOCK, rows = std::min(ROW_BLOCK, all_rows - first);
  const int begin = task % grid.chunks * grid.units_per_task, end = std::min(grid.units, begin + grid.units_per_task);
  float* c = (float*)scratch;
  float* up = c + ROW_BLOCK * LANES;
  uint8_t* wide = (uint8_t*)(up + ROW_BLOCK * LANES);
  const int64_t q_stride = int64_t(w.k) * (w.format == U4 ? 1 : 2);
  const Acts acts = {run.act_q + first * q_stride, q_stride, run.act_scale + first * run.act_groups,
                     run.act_sum + first * run.act_groups, run.act_groups};
  const float* x = op.in.data + first * op.in.stride;
  const int64_t bytes = panel_bytes(w);
  const int per_unit = op.silu_mul ? 2 : 1;
  // Threads take tasks in turn: this one's next is likely to be as many further on as there are threads.
  const int next_begin = begin + run.threads * grid.units_per_task;
  const uint8_t* next_task = next_begin < grid.units ? w.data + next_begin * per_unit * bytes : nullptr;
  for (int panel = begin * per_unit; panel < end * per_unit; ++panel) {
    const uint8_t* data = w.data + panel * bytes;
    const bool is_up = op.silu_mul && panel % 2 == 1;
    run_panel(w, data, panel + 1 < end * per_unit ? data + bytes : next_task, x, op.in.stride, acts, rows, is_up ? up : c, wide);
    if (op.silu_mul && !is_up) continue;
    for (int r = 0; r < rows; ++r) finish_unit(op, panel / per_unit, first + r, load(c + r * LANES), up + r * LANES);
  }
}

// ---- attention --------------------------------------------------------------------------------------------------

struct AttentionScratch {
  float *scores, *values, *total;
  uint8_t* gather;
};
AttentionScratch attention_scratch(uint8_t* scratch, int dp) {
  float* scores = (float*)scratch;
  float* values = scores + TILE_ROWS * PARTITION;
  float* total = values + TILE_ROWS * dp;
  return {scores, values, total, (uint8_t*)(total + TILE_ROWS * dp)};
}

// A tile's rows: token-major, the heads of the group side by side.
int tile_rows(const Op& op, const Run& run, int first_row, int tokens, int kv_head, int row_begin, QueryRow* rows) {
  const int group = op.num_heads / op.num_kv_heads;
  const int count = std::min(TILE_ROWS, tokens * group - row_begin);
  for (int i = 0; i < count; ++i) {
    const int token = first_row + (row_begin + i) / group, head = kv_head * group + (row_begin + i) % group;
    const int position = run.step->positions[token];
    rows[i] = {op.in.data + token * op.in.stride + head * op.head_dim,
               op.window > 0 && position + 1 > op.window ? position + 1 - op.window : 0, position + 1};
  }
  return count;
}

TS_INLINE float* out_row(const Op& op, int first_row, int kv_head, int row) {
  const int group = op.num_heads / op.num_kv_heads;
  return op.out.data + (first_row + row / group) * op.out.stride + (kv_head * group + row % group) * op.head_dim;
}

template <int FORMAT>
void attend(const Op& op, const Run& run, int task, uint8_t* scratch) {
  const AttentionTask& t = run.plan->tasks[task / op.num_kv_heads];
  const int kv_head = task % op.num_kv_heads, d = op.head_dim, dp = padded(d);
  const AttentionScratch s = attention_scratch(scratch, dp);
  KeyValues<FORMAT> kv(op, *run.kv, run.step->block_ids + run.step->block_starts[t.seq], kv_head, s.gather);
  const int all_rows = t.tokens * (op.num_heads / op.num_kv_heads);
  QueryRow rows[TILE_ROWS];
  Partial partial[TILE_ROWS], total[TILE_ROWS];
  for (int begin = 0; begin < all_rows; begin += TILE_ROWS) {
    const int count = tile_rows(op, run, t.first_row, t.tokens, kv_head, begin, rows);
    if (t.partition >= 0) {  // keep the partials: a later stage folds them
      float* keep = run.plan->partials.data() + (t.slot * op.num_kv_heads + kv_head * all_rows + begin) * (dp + 2);
      run_partition(kv, rows, count, t.partition, d, s.scores, partial, s.values);
      for (int r = 0; r < count; ++r, keep += dp + 2) {
        keep[0] = partial[r].max, keep[1] = partial[r].sum;
        memcpy(keep + 2, s.values + r * dp, dp * sizeof(float));
      }
      continue;
    }
    int lo = rows[0].lo, hi = rows[0].hi;
    for (int r = 0; r < count; ++r) {
      total[r] = {-INFINITY, 0.0f};
      lo = std::min(lo, rows[r].lo), hi = std::max(hi, rows[r].hi);
    }
    memset(s.total, 0, count * dp * sizeof(float));
    for (int partition = lo / PARTITION; partition * PARTITION < hi; ++partition) {
      run_partition(kv, rows, count, partition, d, s.scores, partial, s.values);
      for (int r = 0; r < count; ++r) fold(total[r], s.total + r * dp, partial[r], s.values + r * dp, dp);
    }
    for (int r = 0; r < count; ++r) write_row(total[r], s.total + r * dp, d, out_row(op, t.first_row, kv_head, begin + r));
  }
}

void merge(const Op& op, const Run& run, int task, uint8_t* scratch) {
  const MergeTask& t = run.plan->merges[task / op.num_kv_heads];
  const int kv_head = task % op.num_kv_heads, dp = padded(op.head_dim);
  const int rows = t.tokens * (op.num_heads / op.num_kv_heads);
  float* values = (float*)scratch;
  for (int r = 0; r < rows; ++r) {
    Partial total = {-INFINITY, 0.0f};
    memset(values, 0, dp * sizeof(float));
    for (int p = 0; p < t.partitions; ++p) {
      const float* kept = run.plan->partials.data() +
                          ((t.slot + int64_t(p) * rows) * op.num_kv_heads + kv_head * rows + r) * (dp + 2);
      fold(total, values, {kept[0], kept[1]}, kept + 2, dp);
    }
    write_row(total, values, op.head_dim, out_row(op, t.first_row, kv_head, r));
  }
}

void attention(const Op& op, const Run& run, int stage, int task, uint8_t* scratch) {
  if (stage == 1) return merge(op, run, task, scratch);
  switch (run.kv->format) {
    case F32: return attend<F32>(op, run, task, scratch);
    case F16: return attend<F16>(op, run, task, scratch);
    case BF16: return attend<BF16>(op, run, task, scratch);
    default: return attend<INT8>(op, run, task, scratch);
  }
}

// ---- one task of any operation ----------------------------------------------------------------------------------

void run_task(const Op& op, const Run& run, int stage, int task, uint8_t* scratch) {
  const int rows = rows_of(op, *run.step);
  switch (op.kind) {
    case EMBED:
      return for_rows(rows, task, [&](int row) { embed_row(op.weight, run.step->token_ids[row], op.out.data + row * op.out.stride); });
    case RMS_NORM:
      return for_rows(rows, task, [&](int row) {
        rms_norm_row(op.in.data + row * op.in.stride, op.vector, op.width, op.eps, op.out.data + row * op.out.stride);
      });
    case GATHER_ROWS:
      return for_rows(rows, task, [&](int row) {
        memcpy(op.out.data + row * op.out.stride, op.in.data + run.step->logit_rows[row] * op.in.stride, op.width * sizeof(float));
      });
    case ROPE_AND_CACHE:
      return for_rows(rows, task, [&](int row) { rope_and_cache_row(op, *run.kv, *run.step, row); });
    case LINEAR:
      if (is_quantized(op.weight) && stage == 0) return quantize_rows(op, run, task);
      return linear(op, run, task, scratch);
    case ATTENTION:
      return attention(op, run, stage, task, scratch);
  }
}

}  // namespace

#define TS_CONCAT_(a, b) a##b
#define TS_CONCAT(a, b) TS_CONCAT_(a, b)
#define TS_STRING_(x) #x
#define TS_STRING(x) TS_STRING_(x)

extern const Kernels TS_CONCAT(kernels_, TS_ISA) = {TS_STRING(TS_ISA), run_task, sample_row, probe};
