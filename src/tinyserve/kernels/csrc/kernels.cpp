// The kernels of one instruction set: this file is compiled once for each, with TS_ISA_<NAME> defined.
#include <optional>

#include "attention.h"
#include "elementwise.h"
#include "panels.h"
#include "probe.h"
#include "sample.h"
#include "tasks.h"

namespace {

static_assert(PANEL == LANES && KEY_PARTITION == PARTITION && SPLIT_MAX_ROWS == TILE_ROWS && WIDE_FEATURES == FLOAT_BLOCK &&
                  LEAST_TILE_ROWS <= U4_ROWS && LEAST_TILE_ROWS <= INT8_ROWS,
              "tasks.h and the kernels agree");

template <class F>
TS_INLINE void for_rows(const Op& op, int rows, int task, F&& f) {
  const int per = rows_per_task(op, rows);
  for (int row = task * per; row < rows && row < (task + 1) * per; ++row) f(row);
}

// ---- linear -----------------------------------------------------------------------------------------------------

// A block of rows of one linear operation.
struct RowBlock {
  int first, rows;
  Layout layout;
  RowBlock(const Op& op, const Run& run, int block)
      : first(block * block_rows(op, run.amx)), rows(std::min(block_rows(op, run.amx), rows_of(op, *run.step) - first)),
        layout(layout_of(op.weight, rows, run.amx)) {}
  Acts acts(const Op& op, const Run& run) const {
    if (!act_bytes(op.weight)) return {};
    return acts_of(op.weight, {run.act_q, run.act_scale, run.act_sum}, first);
  }
};

// A tile, or a run of its groups, row by row into the layout that the tile will read.
void prepare(const Op& op, const Run& run, int task) {
  const Weight& w = op.weight;
  const int tasks = prepare_tasks(op, run.amx);
  const RowBlock block(op, run, task / tasks);
  const Tiles tiles(block.rows, block.layout.tile_rows);
  const int parts = ceil_div(block.rows, LEAST_TILE_ROWS) / tiles.count, groups = w.k / w.group;
  const int tile = task % tasks / parts, part = task % tasks % parts;
  if (tile >= tiles.count) return;
  const int first = tiles.first(tile), begin = groups * part / parts, end = groups * (part + 1) / parts;
  const Acts to = acts_of(w, block.acts(op, run), first);
  for (int r = 0; r < tiles.rows(tile); ++r) {
    const float* x = op.in.data + (block.first + first + r) * op.in.stride;
    const float* next = x + (r + 1 < tiles.rows(tile) ? op.in.stride : 0);
    if (w.format == BF16X2)
      for (int step = begin; step < end; ++step) split_bf16(x + step * BF16_STEP, to.q, step, r, tiles.rows(tile), next + step * BF16_STEP);
    else if (w.format == U4) quantize_groups<int8_t>(x, next, w.group, begin, end, block.layout, to, r, tiles.rows(tile));
    else quantize_groups<int16_t>(x, next, w.group, begin, end, block.layout, to, r, tiles.rows(tile));
  }
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
  const LinearGrid grid(op, rows_of(op, *run.step), run.threads, run.amx);
  const RowBlock block(op, run, task / grid.chunks);
  const int begin = task % grid.chunks * grid.units_per_task, end = std::min(grid.units, begin + grid.units_per_task);
  float* c = (float*)scratch;  // sums of one panel, or of the gate's
  float* up = c + MAX_BLOCK_ROWS * LANES;  // of the next
  uint8_t* wide = (uint8_t*)(up + MAX_BLOCK_ROWS * LANES);
  const Acts acts = block.acts(op, run);
  const float* x = op.in.data + block.first * op.in.stride;
  const int64_t bytes = panel_bytes(w);
  const int per_unit = op.silu_mul ? 2 : 1;
  const uint8_t* next_task = end < grid.units ? w.data + end * per_unit * bytes : nullptr;  // likely to be this thread's, too
#if TS_HAVE_AMX
  std::optional<AmxShapes> shapes;
  if (block.layout.amx) shapes.emplace(w);
#endif
  const int last = end * per_unit, at_once = op.silu_mul ? 2 : panels_at_once(w, block.layout);
  for (int panel = begin * per_unit; panel < last; panel += at_once) {
    const int count = std::min(at_once, last - panel), after = panel + count;
    const uint8_t* next = after < last ? w.data + after * bytes : next_task;
    run_panels(w, w.data + panel * bytes, count, next, x, op.in.stride, acts, block.layout, block.rows, c, wide);
    for (int i = 0; i < count / per_unit; ++i)
      for (int r = 0; r < block.rows; ++r)
        finish_unit(op, panel / per_unit + i, block.first + r, load((i == 0 ? c : up) + r * LANES), up + r * LANES);
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

// Where the partials of a run of rows lie for one partition and kv head: [rows][padded head_dim + 2], max and sum first.
TS_INLINE float* partials_of(const Op& op, const Run& run, const RowRun& rows, int partition, int kv_head) {
  const int64_t count = rows.tokens * (op.num_heads / op.num_kv_heads);
  return run.plan->partials.data() +
         ((rows.slot + partition * count) * op.num_kv_heads + kv_head * count) * (padded(op.head_dim) + 2);
}

TS_INLINE float* out_row(const Op& op, int token, int head) { return op.out.data + token * op.out.stride + head * op.head_dim; }

// Add rows first, first + 1, ... of a run to a tile, as many as fit: token-major, the heads of the group side by side.
void add_rows(const Op& op, const Run& run, const RowRun& from, int first, int kv_head, int partition, RowTile& tile) {
  const int group = op.num_heads / op.num_kv_heads;
  const int count = std::min(TILE_ROWS - tile.num_rows, from.tokens * group - first);
  const int32_t* blocks = run.step->block_ids + run.step->block_starts[from.seq];
  tile.spans[tile.num_spans++] = {blocks, tile.num_rows, tile.num_rows + count};
  for (int i = first; i < first + count; ++i) {
    const int token = from.first_row + i / group, head = kv_head * group + i % group;
    const int position = run.step->positions[token];
    const int lo = op.window > 0 && position + 1 > op.window ? position + 1 - op.window : 0;
    float* out = partition < 0 ? out_row(op, token, head)
                               : partials_of(op, run, from, partition, kv_head) + int64_t(i) * (padded(op.head_dim) + 2);
    tile.rows[tile.num_rows++] = {op.in.data + token * op.in.stride + head * op.head_dim, lo, position + 1, out};
  }
}

// The keys of the next task, which is likely to be this thread's, too.
template <int FORMAT>
Upcoming<FORMAT> upcoming(const Op& op, const Run& run, int task) {
  Upcoming<FORMAT> next;
  const size_t number = (task + 1) / op.num_kv_heads;
  if (number >= run.plan->tasks.size() || run.kv->block_size != LANES || op.window > 0) return next;
  const AttentionTask& t = run.plan->tasks[number];
  const RowRun& rows = run.plan->runs[t.first_run];
  const int32_t* blocks = run.step->block_ids + run.step->block_starts[rows.seq];
  const int first = std::max(t.partition, 0) * PARTITION, last = run.step->positions[rows.first_row + rows.tokens - 1];
  const auto* k = (const typename KeyValues<FORMAT>::T*)run.kv->k;
  for (int p = first; p <= last && p < first + PARTITION; p += LANES)
    next.keys[next.count++] = k + kv_unit(*run.kv, op.layer, (task + 1) % op.num_kv_heads, blocks[p / LANES]) * op.head_dim * LANES;
  return next;
}

// One partition of a tile, kept for `merge`.
template <int FORMAT>
void keep_partition(KeyValues<FORMAT>& kv, const RowTile& tile, const AttentionTask& t, int d, const AttentionScratch& s,
                    const Upcoming<FORMAT>& next) {
  Partial partial[TILE_ROWS];
  PartitionRun<FORMAT>(kv, tile, t.partition, t.shared, d, s.scores, partial, s.values, next).run();
  for (int r = 0; r < tile.num_rows; ++r) {
    float* keep = tile.rows[r].out;
    keep[0] = partial[r].max, keep[1] = partial[r].sum;
    memcpy(keep + 2, s.values + r * padded(d), padded(d) * sizeof(float));
  }
}

// All partitions of a tile, folded as they come.
template <int FORMAT>
void fold_partitions(KeyValues<FORMAT>& kv, const RowTile& tile, int d, const AttentionScratch& s, const Upcoming<FORMAT>& next) {
  const int dp = padded(d);
  Partial partial[TILE_ROWS], total[TILE_ROWS];
  for (int r = 0; r < tile.num_rows; ++r) total[r] = {-INFINITY, 0.0f};
  memset(s.total, 0, tile.num_rows * dp * sizeof(float));
  int lo, hi;
  tile.reach(0, tile.num_rows, lo, hi);
  for (int partition = lo / PARTITION; partition * PARTITION < hi; ++partition) {
    PartitionRun<FORMAT>(kv, tile, partition, 0, d, s.scores, partial, s.values, next).run();
    for (int r = 0; r < tile.num_rows; ++r) fold(total[r], s.total + r * dp, partial[r], s.values + r * dp, dp);
  }
  for (int r = 0; r < tile.num_rows; ++r) write_row(total[r], s.total + r * dp, d, tile.rows[r].out);
}

template <int FORMAT>
void attend(const Op& op, const Run& run, int task, uint8_t* scratch) {
  const AttentionTask& t = run.plan->tasks[task / op.num_kv_heads];
  const int kv_head = task % op.num_kv_heads, d = op.head_dim;
  const RowRun* runs = run.plan->runs.data() + t.first_run;
  const AttentionScratch s = attention_scratch(scratch, padded(d));
  KeyValues<FORMAT> kv(op, *run.kv, kv_head, s.gather);
  const Upcoming<FORMAT> next = upcoming<FORMAT>(op, run, task);
  const int rows = runs[0].tokens * (op.num_heads / op.num_kv_heads);
  for (int first = 0; first < rows; first += TILE_ROWS) {  // several runs share a tile only if they fit into one
    RowTile tile;
    for (int i = 0; i < t.num_runs; ++i) add_rows(op, run, runs[i], first, kv_head, t.partition, tile);
    if (t.partition >= 0) keep_partition(kv, tile, t, d, s, next);
    else fold_partitions(kv, tile, d, s, next);
  }
}

void merge(const Op& op, const Run& run, int task, uint8_t* scratch) {
  const RowRun& rows = run.plan->runs[run.plan->merges[task / op.num_kv_heads]];
  const int kv_head = task % op.num_kv_heads, dp = padded(op.head_dim), group = op.num_heads / op.num_kv_heads;
  float* values = (float*)scratch;
  for (int r = 0; r < rows.tokens * group; ++r) {
    Partial total = {-INFINITY, 0.0f};
    memset(values, 0, dp * sizeof(float));
    for (int p = 0; p < rows.partitions; ++p) {
      const float* kept = partials_of(op, run, rows, p, kv_head) + int64_t(r) * (dp + 2);
      fold(total, values, {kept[0], kept[1]}, kept + 2, dp);
    }
    write_row(total, values, op.head_dim, out_row(op, rows.first_row + r / group, kv_head * group + r % group));
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
      return for_rows(op, rows, task, [&](int row) { embed_row(op.weight, run.step->token_ids[row], op.out.data + row * op.out.stride); });
    case RMS_NORM:
      return for_rows(op, rows, task, [&](int row) {
        rms_norm_row(op.in.data + row * op.in.stride, op.vector, op.width, op.eps, op.out.data + row * op.out.stride);
      });
    case GATHER_ROWS:
      return for_rows(op, rows, task, [&](int row) {
        memcpy(op.out.data + row * op.out.stride, op.in.data + run.step->logit_rows[row] * op.in.stride, op.width * sizeof(float));
      });
    case ROPE_AND_CACHE:
      return for_rows(op, rows, task, [&](int row) { rope_and_cache_row(op, *run.kv, *run.step, row); });
    case LINEAR:
      if (act_bytes(op.weight) && stage == 0) return prepare(op, run, task);
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
