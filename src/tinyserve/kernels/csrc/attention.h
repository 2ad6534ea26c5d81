// Paged attention with grouped queries (FlashAttention's online softmax, Dao et al. 2022, over fixed partitions).
//
// A query's keys are cut into partitions of 256, anchored at position 0. A partition yields (max, sum, weighted values);
// partitions are folded in ascending order. A row's result depends on its own position and keys alone: never on the
// tile it shares, on who computed a partition, or on what lies in slots beyond its position.
#pragma once
#include "abi.h"
#include "elementwise.h"
#include "simd.h"

#include <type_traits>

namespace {

constexpr int PARTITION = 256;
constexpr int TILE_ROWS = 24;   // query rows (heads of a group x tokens) that share one pass over keys

// Scratch for one tile of 16 positions, where blocks are smaller: scales, keys, values.
TS_INLINE int64_t gather_tile_bytes(int dp) { return 4 * (2 * LANES + 2 * int64_t(LANES) * dp); }

// One partition's result for one row, or the fold of several; `values` is the row's [head_dim] accumulator.
struct Partial {
  float max, sum;
};

// The keys and values of one sequence, kv head and partition, 16 positions at a time.
template <int FORMAT>
class KeyValues {
 public:
  using T = typename std::conditional<FORMAT == F32, float, typename std::conditional<FORMAT == INT8, int8_t, uint16_t>::type>::type;

  struct Tile {
    const T* k;  // [head_dim][16], rows k_stride apart
    int64_t k_stride;
    const T* v;  // [16][padded head_dim]
    const float *k_scale, *v_scale;
  };

  KeyValues(const Op& op, const KVCache& kv, const int32_t* blocks, int head, uint8_t* scratch)
      : kv_(kv), blocks_(blocks), layer_(op.layer), head_(head), d_(op.head_dim), scratch_(scratch) {}

  // Find positions begin .. end - 1 (begin a multiple of 16): tile i holds begin + 16 i ...
  void open(int begin, int end) {
    int i = 0;
    for (int p = begin; p < end; p += LANES, ++i) tiles_[i] = kv_.block_size >= LANES ? direct(p) : gathered(p, end, i);
  }
  TS_INLINE const Tile& tile(int i) const { return tiles_[i]; }

  static TS_INLINE vf widen(const T* p) {
    if constexpr (FORMAT == F32) return load(p);
    else if constexpr (FORMAT == F16) return load_f16(p);
    else if constexpr (FORMAT == BF16) return load_bf16(p);
    else return load_i8(p);
  }

 private:
  Tile direct(int p) const {
    const int size = kv_.block_size, slot = p % size;
    const int64_t unit = kv_unit(kv_, layer_, head_, blocks_[p / size]);
    return {(const T*)kv_.k + unit * d_ * size + slot, size, (const T*)kv_.v + (unit * size + slot) * padded(d_),
            kv_.k_scale + unit * size + slot, kv_.v_scale + unit * size + slot};
  }

  // Blocks under 16 slots are copied together.
  Tile gathered(int p, int end, int i) const {
    const int size = kv_.block_size, dp = padded(d_);
    float* scales = (float*)(scratch_ + i * gather_tile_bytes(dp));
    T* k = (T*)(scales + 2 * LANES);
    T* v = k + LANES * dp;
    for (int j = 0; j < LANES && p + j < end; ++j) {
      const int64_t unit = kv_unit(kv_, layer_, head_, blocks_[(p + j) / size]);
      const int slot = (p + j) % size;
      for (int f = 0; f < d_; ++f) k[f * LANES + j] = ((const T*)kv_.k)[(unit * d_ + f) * size + slot];
      memcpy(v + j * dp, (const T*)kv_.v + (unit * size + slot) * dp, dp * sizeof(T));
      if (FORMAT == INT8) {
        scales[j] = kv_.k_scale[unit * size + slot];
        scales[LANES + j] = kv_.v_scale[unit * size + slot];
      }
    }
    return {k, LANES, v, scales, scales + LANES};
  }

  const KVCache& kv_;
  const int32_t* blocks_;
  int layer_, head_, d_;
  uint8_t* scratch_;
  Tile tiles_[PARTITION / LANES];
};

// Query rows of a tile: each row's query, and the keys it may see, [lo, hi).
struct QueryRow {
  const float* q;
  int lo, hi;
};

// scores[r][16 j ..] for R rows against N tiles of 16 keys: one accumulator lane per key, features ascending.
template <int FORMAT, int R, int N>
TS_INLINE void score_tiles(const KeyValues<FORMAT>& kv, int first, const QueryRow* rows, int d, float* scores) {
  vf acc[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) acc[r][n] = zero();
  for (int i = 0; i < d; ++i) {
    vf key[N];
    for (int n = 0; n < N; ++n) key[n] = KeyValues<FORMAT>::widen(kv.tile(first + n).k + i * kv.tile(first + n).k_stride);
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) acc[r][n] = fma(set1(rows[r].q[i]), key[n], acc[r][n]);
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      if (FORMAT == INT8) acc[r][n] = mul(acc[r][n], load(kv.tile(first + n).k_scale));
      store(scores + r * PARTITION + (first + n) * LANES, acc[r][n]);
    }
}

// values[r][16 c ..] = sum over keys of p[r][key] * V[key][16 c ..] for N runs of 16 features, keys ascending; each row
// meets exactly the keys it may see.
template <int FORMAT, int R, int N>
TS_INLINE void value_tiles(const KeyValues<FORMAT>& kv, const QueryRow* rows, int begin, int end, const float* p, int dp, int c,
                           float* values) {
  vf acc[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) acc[r][n] = zero();
  for (int key = begin, i = 0; key < end; key += LANES, ++i) {
    const auto* v = kv.tile(i).v + c;
    bool all = true;
    for (int r = 0; r < R; ++r) all = all && rows[r].lo <= key && key + LANES <= rows[r].hi;
    if (all) {
      for (int j = 0; j < LANES; ++j)
        for (int n = 0; n < N; ++n) {
          const vf x = KeyValues<FORMAT>::widen(v + j * dp + n * LANES);
          for (int r = 0; r < R; ++r) acc[r][n] = fma(set1(p[r * PARTITION + i * LANES + j]), x, acc[r][n]);
        }
      continue;
    }
    for (int r = 0; r < R; ++r) {
      const int first = rows[r].lo > key ? rows[r].lo - key : 0;
      const int last = rows[r].hi - key < LANES ? rows[r].hi - key : LANES;
      for (int j = first; j < last; ++j)
        for (int n = 0; n < N; ++n)
          acc[r][n] = fma(set1(p[r * PARTITION + i * LANES + j]), KeyValues<FORMAT>::widen(v + j * dp + n * LANES), acc[r][n]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(values + r * dp + c + n * LANES, acc[r][n]);
}

// Call f(R, N)(first row, first step) so that R rows x N steps cover rows x steps, about six registers of sixteen lanes at
// a time: few rows take several steps at once, to have enough independent sums in flight.
template <int R, class F>
TS_INLINE void cover_steps(int row, int steps, F&& f) {
  constexpr int N = R == 1 ? 4 : R <= 3 ? 2 : 1;
  int step = 0;
  for (; steps - step >= N; step += N) f(std::integral_constant<int, R>(), std::integral_constant<int, N>(), row, step);
  for (; step < steps; ++step) f(std::integral_constant<int, R>(), std::integral_constant<int, 1>(), row, step);
}
template <class F>
TS_INLINE void cover(int rows, int steps, F&& f) {
  int r = 0;
  for (; rows - r >= 6; r += 6) cover_steps<6>(r, steps, f);
  switch (rows - r) {
    case 5: return cover_steps<5>(r, steps, f);
    case 4: return cover_steps<4>(r, steps, f);
    case 3: return cover_steps<3>(r, steps, f);
    case 2: return cover_steps<2>(r, steps, f);
    case 1: return cover_steps<1>(r, steps, f);
    default: return;
  }
}

// Scores of one row to weights, in place; what lies outside the row's keys becomes zero.
template <int FORMAT>
inline Partial weigh(const KeyValues<FORMAT>& kv, float* s, int from, int to) {
  if (from >= to) return {-INFINITY, 0.0f};
  auto valid = [&](vf x, int i, float other) {
    return lanes_from_to(x, from > i ? from - i : 0, to - i < LANES ? to - i : LANES, other);
  };
  vf top = set1(-INFINITY);
  for (int i = from / LANES * LANES; i < to; i += LANES) {
    const vf x = valid(load(s + i), i, -INFINITY);
    store(s + i, x);
    top = max(x, top);
  }
  const float biggest = max_lanes(top);
  vf sum = zero();
  for (int i = from / LANES * LANES; i < to; i += LANES) {
    vf e = exp(sub(load(s + i), set1(biggest)));
    sum = add(sum, e);
    if (FORMAT == INT8) e = valid(mul(e, load(kv.tile(i / LANES).v_scale)), i, 0.0f);
    store(s + i, e);
  }
  return {biggest, sum_lanes(sum)};
}

// One partition for a tile of rows: partial[r] and values[r][padded head_dim]. A row that sees no key of it gets sum 0.
template <int FORMAT>
inline void run_partition(KeyValues<FORMAT>& kv, const QueryRow* rows, int num_rows, int partition, int d, float* scores,
                          Partial* partial, float* values) {
  const int dp = padded(d);
  int lo = rows[0].lo, hi = rows[0].hi;
  for (int r = 1; r < num_rows; ++r) {
    lo = rows[r].lo < lo ? rows[r].lo : lo;
    hi = rows[r].hi > hi ? rows[r].hi : hi;
  }
  const int first = partition * PARTITION;
  const int begin = lo > first ? lo / LANES * LANES : first;
  const int end = hi < first + PARTITION ? hi : first + PARTITION;
  kv.open(begin, end);
  const int steps = end > begin ? (end - begin + LANES - 1) / LANES : 0;
  cover(num_rows, steps, [&](auto R, auto N, int r, int step) {
    score_tiles<FORMAT, decltype(R)::value, decltype(N)::value>(kv, step, rows + r, d, scores + r * PARTITION);
  });
  for (int r = 0; r < num_rows; ++r) {
    const int from = (rows[r].lo > begin ? rows[r].lo : begin) - begin, to = (rows[r].hi < end ? rows[r].hi : end) - begin;
    partial[r] = weigh(kv, scores + r * PARTITION, from, to);
  }
  cover(num_rows, dp / LANES, [&](auto R, auto N, int r, int step) {
    value_tiles<FORMAT, decltype(R)::value, decltype(N)::value>(kv, rows + r, begin, end, scores + r * PARTITION, dp, step * LANES,
                                                                values + r * dp);
  });
}

// total <- total folded with one more partition of higher positions.
inline void fold(Partial& total, float* total_values, const Partial& next, const float* values, int dp) {
  if (next.sum == 0.0f && next.max == -INFINITY) return;
  if (total.sum == 0.0f && total.max == -INFINITY) {
    total = next;
    memcpy(total_values, values, dp * sizeof(float));
    return;
  }
  const float top = total.max > next.max ? total.max : next.max;
  const vf a = exp(set1(total.max - top)), b = exp(set1(next.max - top));
  float sums[LANES];
  store(sums, fma(set1(total.sum), a, mul(set1(next.sum), b)));
  total = {top, sums[0]};
  for (int i = 0; i < dp; i += LANES) store(total_values + i, fma(load(total_values + i), a, mul(load(values + i), b)));
}

inline void write_row(const Partial& total, const float* values, int d, float* out) {
  const vf inverse = set1(1.0f / total.sum);
  for (int i = 0; i < d; i += LANES) {
    const vf x = mul(load(values + i), inverse);
    if (i + LANES <= d) {
      store(out + i, x);
    } else {
      float tail[LANES];
      store(tail, x);
      memcpy(out + i, tail, (d - i) * sizeof(float));
    }
  }
}

}  // namespace
