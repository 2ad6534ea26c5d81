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
constexpr int REGISTER_ROWS = 6;

// One partition's result for one row, or the fold of several; `values` is the row's [head_dim] accumulator.
struct Partial {
  float max, sum;
};

// The keys and values of one sequence and kv head, 16 positions at a time.
template <int FORMAT>
class KeyValues {
 public:
  using T = typename std::conditional<FORMAT == F32, float, typename std::conditional<FORMAT == INT8, int8_t, uint16_t>::type>::type;

  KeyValues(const Op& op, const KVCache& kv, const int32_t* blocks, int head, float* scratch)
      : kv_(kv), blocks_(blocks), layer_(op.layer), head_(head), d_(op.head_dim), scratch_(scratch) {}

  struct Tile {
    const T* k;  // [head_dim][16], rows k_stride apart
    int64_t k_stride;
    const T* v;  // [16][padded head_dim]
    const float *k_scale, *v_scale;
  };

  // Positions p .. p + 15 (p a multiple of 16), of which the first `valid` exist. Blocks under 16 slots are gathered.
  TS_INLINE Tile at(int p, int valid) const {
    const int size = kv_.block_size;
    const T *k = (const T*)kv_.k, *v = (const T*)kv_.v;
    if (size >= LANES) {
      const int64_t unit = kv_unit(kv_, layer_, head_, blocks_[p / size]);
      const int slot = p % size;
      return {k + unit * d_ * size + slot, size, v + (unit * size + slot) * padded(d_),
              kv_.k_scale + unit * size + slot, kv_.v_scale + unit * size + slot};
    }
    T* tk = (T*)scratch_;
    T* tv = (T*)(scratch_ + LANES * padded(d_));
    float* scales = scratch_ + 2 * LANES * padded(d_);
    for (int j = 0; j < valid; ++j) {
      const int64_t unit = kv_unit(kv_, layer_, head_, blocks_[(p + j) / size]);
      const int slot = (p + j) % size;
      for (int i = 0; i < d_; ++i) tk[i * LANES + j] = k[(unit * d_ + i) * size + slot];
      memcpy(tv + j * padded(d_), v + (unit * size + slot) * padded(d_), padded(d_) * sizeof(T));
      if (FORMAT == INT8) {
        scales[j] = kv_.k_scale[unit * size + slot];
        scales[LANES + j] = kv_.v_scale[unit * size + slot];
      }
    }
    return {tk, LANES, tv, scales, scales + LANES};
  }

  static TS_INLINE vf widen(const T* p) {
    if constexpr (FORMAT == F32) return load(p);
    else if constexpr (FORMAT == F16) return load_f16(p);
    else if constexpr (FORMAT == BF16) return load_bf16(p);
    else return load_i8(p);
  }

 private:
  const KVCache& kv_;
  const int32_t* blocks_;
  int layer_, head_, d_;
  float* scratch_;
};

// Query rows of a tile: each row's query, and the keys it may see, [lo, hi).
struct QueryRow {
  const float* q;
  int lo, hi;
};

// scores[r][0..15] for R rows against 16 keys: one accumulator lane per key, features ascending.
template <int FORMAT, int R>
TS_INLINE void score_tile(const typename KeyValues<FORMAT>::Tile& t, const QueryRow* rows, int d, float* scores, int64_t stride) {
  vf acc[R];
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int i = 0; i < d; ++i) {
    const vf key = KeyValues<FORMAT>::widen(t.k + i * t.k_stride);
    for (int r = 0; r < R; ++r) acc[r] = fma(set1(rows[r].q[i]), key, acc[r]);
  }
  for (int r = 0; r < R; ++r) {
    if (FORMAT == INT8) acc[r] = mul(acc[r], load(t.k_scale));
    store(scores + r * stride, acc[r]);
  }
}

// values[r][c..c+15] += p[r][key] * V[key][c..c+15], keys ascending, for every row whose range covers them.
template <int FORMAT, int R>
TS_INLINE void value_tile(const KeyValues<FORMAT>& kv, const QueryRow* rows, int begin, int end, const float* p, int64_t stride,
                          int c, int dp, float* values) {
  vf acc[R];
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int key = begin; key < end; key += LANES) {
    const auto t = kv.at(key, end - key < LANES ? end - key : LANES);
    bool all = true;
    for (int r = 0; r < R; ++r) all = all && rows[r].lo <= key && key + LANES <= rows[r].hi;
    if (all) {
      for (int j = 0; j < LANES; ++j) {
        const vf v = KeyValues<FORMAT>::widen(t.v + j * dp + c);
        for (int r = 0; r < R; ++r) acc[r] = fma(set1(p[r * stride + key - begin + j]), v, acc[r]);
      }
      continue;
    }
    for (int r = 0; r < R; ++r) {
      const int first = rows[r].lo > key ? rows[r].lo - key : 0;
      const int last = rows[r].hi - key < LANES ? rows[r].hi - key : LANES;
      for (int j = first; j < last; ++j)
        acc[r] = fma(set1(p[r * stride + key - begin + j]), KeyValues<FORMAT>::widen(t.v + j * dp + c), acc[r]);
    }
  }
  for (int r = 0; r < R; ++r) store(values + r * dp + c, acc[r]);
}

// Run f<R>(first row) over `rows` rows, at most REGISTER_ROWS at a time.
template <class F>
TS_INLINE void by_register_rows(int rows, F&& f) {
  int r = 0;
  for (; rows - r >= 6; r += 6) f(std::integral_constant<int, 6>(), r);
  switch (rows - r) {
    case 5: return f(std::integral_constant<int, 5>(), r);
    case 4: return f(std::integral_constant<int, 4>(), r);
    case 3: return f(std::integral_constant<int, 3>(), r);
    case 2: return f(std::integral_constant<int, 2>(), r);
    case 1: return f(std::integral_constant<int, 1>(), r);
    default: return;
  }
}

// One partition for a tile of rows: partial[r] and values[r][padded head_dim]. A row that sees no key of it gets sum 0.
template <int FORMAT>
inline void run_partition(const KeyValues<FORMAT>& kv, const QueryRow* rows, int num_rows, int partition, int d, float* scores,
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
  for (int key = begin; key < end; key += LANES) {
    const auto t = kv.at(key, end - key < LANES ? end - key : LANES);
    by_register_rows(num_rows, [&](auto count, int r) {
      score_tile<FORMAT, decltype(count)::value>(t, rows + r, d, scores + r * PARTITION + key - begin, PARTITION);
    });
  }
  for (int r = 0; r < num_rows; ++r) {
    float* s = scores + r * PARTITION;
    const int from = (rows[r].lo > begin ? rows[r].lo : begin) - begin, to = (rows[r].hi < end ? rows[r].hi : end) - begin;
    if (from >= to) {
      partial[r] = {-INFINITY, 0.0f};
      continue;
    }
    vf top = set1(-INFINITY);
    const int steps_from = from / LANES * LANES;
    for (int i = steps_from; i < to; i += LANES) {
      const vf x = lanes_from_to(load(s + i), from > i ? from - i : 0, to - i < LANES ? to - i : LANES, -INFINITY);
      store(s + i, x);
      top = max(x, top);
    }
    const float biggest = max_lanes(top);
    vf sum = zero();
    for (int i = steps_from; i < to; i += LANES) {
      vf e = exp(sub(load(s + i), set1(biggest)));
      sum = add(sum, e);
      if (FORMAT == INT8) {
        const auto t = kv.at(begin + i, to - i < LANES ? to - i : LANES);
        e = lanes_from_to(mul(e, load(t.v_scale)), 0, to - i < LANES ? to - i : LANES, 0.0f);
      }
      store(s + i, e);
    }
    partial[r] = {biggest, sum_lanes(sum)};
  }
  for (int c = 0; c < dp; c += LANES)
    by_register_rows(num_rows, [&](auto count, int r) {
      value_tile<FORMAT, decltype(count)::value>(kv, rows + r, begin, end, scores + r * PARTITION, PARTITION, c, dp, values + r * dp);
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
