// Paged attention with grouped queries (FlashAttention's online softmax, Dao et al. 2022, over fixed partitions).
//
// A query's keys are cut into partitions of 256, anchored at position 0. A partition yields (max, sum, weighted values);
// partitions are folded in ascending order. A row's result depends on its own position and keys alone: never on the
// tile it shares, on who computed a partition, or on what lies in slots beyond its position.
//
// So rows of several sequences may share a tile as far as their keys lie in the same blocks (a cascade): every score has
// a lane of its own, and a sum over keys that stops where sharing ends goes on from there over the sequence's own keys.
#pragma once
#include "abi.h"
#include "elementwise.h"
#include "simd.h"

#include <type_traits>

namespace {

constexpr int PARTITION = 256;
constexpr int TILE_ROWS = 24;   // query rows (heads of a group x tokens) that share one pass over keys
constexpr int QUAD = 4;         // tiles of 16 keys that all rows of a tile meet before the next: they stay in L1
constexpr int REGISTER_ROWS = 6;  // query rows whose sums are in registers at a time
#if defined(TS_ISA_AVX512)
constexpr bool HOLDS_RUNS = true;  // beside the sums there are registers for several runs of keys or values
#else
constexpr bool HOLDS_RUNS = false;
#endif

// Scratch for one tile of 16 positions, where blocks are smaller: scales, keys, values.
TS_INLINE int64_t gather_tile_bytes(int dp) { return 4 * (2 * LANES + 2 * int64_t(LANES) * dp); }

// One partition's result for one row, or the fold of several; `values` is the row's [head_dim] accumulator.
struct Partial {
  float max, sum;
};

// The keys and values of one kv head and partition, in tiles of 16 positions: tile 0 begins at `origin`.
template <int FORMAT>
class KeyValues {
 public:
  using T = typename std::conditional<FORMAT == F32, float, typename std::conditional<FORMAT == INT8, int8_t, uint16_t>::type>::type;
  static constexpr int PER_LINE = 64 / (LANES * sizeof(T));  // runs of 16 values in a line of memory

  struct Tile {
    const T* k;  // [head_dim][16], rows k_stride apart
    int64_t k_stride;
    const T* v;  // [16][padded head_dim]
    const float *k_scale, *v_scale;
  };

  KeyValues(const Op& op, const KVCache& kv, int head, uint8_t* scratch)
      : kv_(kv), layer_(op.layer), head_(head), d_(op.head_dim), scratch_(scratch) {}

  // Look up positions begin .. end - 1 (begin a multiple of 16) in a sequence's blocks; other tiles stay as they are.
  void open(const int32_t* blocks, int origin, int begin, int end) {
    for (int p = begin; p < end; p += LANES) {
      const int i = (p - origin) / LANES;
      tiles_[i] = kv_.block_size >= LANES ? direct(blocks, p) : gathered(blocks, p, end, i);
    }
  }
  TS_INLINE const Tile& tile(int i) const { return tiles_[i]; }

  static TS_INLINE vf widen(const T* p) {
    if constexpr (FORMAT == F32) return load(p);
    else if constexpr (FORMAT == F16) return load_f16(p);
    else if constexpr (FORMAT == BF16) return load_bf16(p);
    else return load_i8(p);
  }

 private:
  Tile direct(const int32_t* blocks, int p) const {
    const int size = kv_.block_size, slot = p % size;
    const int64_t unit = kv_unit(kv_, layer_, head_, blocks[p / size]);
    return {(const T*)kv_.k + unit * d_ * size + slot, size, (const T*)kv_.v + (unit * size + slot) * padded(d_),
            kv_.k_scale + unit * size + slot, kv_.v_scale + unit * size + slot};
  }

  // Blocks under 16 slots are copied together.
  Tile gathered(const int32_t* blocks, int p, int end, int i) const {
    const int size = kv_.block_size, dp = padded(d_);
    float* scales = (float*)(scratch_ + i * gather_tile_bytes(dp));
    T* k = (T*)(scales + 2 * LANES);
    T* v = k + LANES * dp;
    for (int j = 0; j < LANES && p + j < end; ++j) {
      const int64_t unit = kv_unit(kv_, layer_, head_, blocks[(p + j) / size]);
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
  int layer_, head_, d_;
  uint8_t* scratch_;
  Tile tiles_[PARTITION / LANES];
};

// A query row of a tile: the keys it may see, [lo, hi), and where its result goes.
struct QueryRow {
  const float* q;
  int lo, hi;
  float* out;
};

// Rows begin .. end - 1 of a tile, all of one sequence: where its keys lie.
struct RowSpan {
  const int32_t* blocks;
  int begin, end;
};

struct RowTile {
  QueryRow rows[TILE_ROWS];
  RowSpan spans[TILE_ROWS];
  int num_rows = 0, num_spans = 0;

  // The keys that some of rows begin .. end - 1 see.
  void reach(int begin, int end, int& lo, int& hi) const {
    lo = INT32_MAX, hi = 0;
    for (int r = begin; r < end; ++r) {
      lo = rows[r].lo < lo ? rows[r].lo : lo;
      hi = rows[r].hi > hi ? rows[r].hi : hi;
    }
  }
};

// acc[r][n] += *factor(r) * run(n) for R rows and N runs of sixteen numbers.
template <int R, int N, class Runs, class Factor>
TS_INLINE void outer_product(vf (&acc)[R][N], Runs&& run, Factor&& factor) {
  if constexpr (HOLDS_RUNS) {
    vf runs[N];
    forget();
    each<N>([&](auto n) TS_LAMBDA { runs[n] = run(n), pin(runs[n]); });
    each<R>([&](auto r) TS_LAMBDA {
      const vf x = set1(*factor(r));
      each<N>([&](auto n) TS_LAMBDA { acc[r][n] = fma(x, runs[n], acc[r][n]), pin(acc[r][n]); });
    });
  } else {
    each<N>([&](auto n) TS_LAMBDA {
      forget();
      vf one = run(n);
      pin(one);
      each<R>([&](auto r) TS_LAMBDA { acc[r][n] = fma(set1(*factor(r)), one, acc[r][n]), pin(acc[r][n]); });
    });
  }
}

// scores[r][16 j ..] for R rows against N tiles of 16 keys: one accumulator lane per key, features ascending.
//
// A tile is contiguous, the next one lies elsewhere: the processor does not guess it. With `fetch`, each line of keys that is
// used asks for one of the keys N tiles further on (before tile `last`) and for one of the values of the same tiles, so that
// memory and arithmetic are busy at the same time.
template <int FORMAT, int R, int N>
TS_INLINE void score_tiles(const KeyValues<FORMAT>& kv, int first, int last, const QueryRow* rows, int d, bool fetch, float* scores) {
  using T = typename KeyValues<FORMAT>::T;
  constexpr int LINE = KeyValues<FORMAT>::PER_LINE;  // features
  vf acc[R][N];
  const float* q[R];
  const T *k[N], *ahead[N], *values[N];
  int64_t stride[N];
  each<R>([&](auto r) TS_LAMBDA {
    q[r] = rows[r].q;
    each<N>([&](auto n) TS_LAMBDA { acc[r][n] = zero(); });
  });
  each<N>([&](auto n) TS_LAMBDA {
    const int next = first + N + n;
    k[n] = kv.tile(first + n).k;
    stride[n] = kv.tile(first + n).k_stride;
    ahead[n] = next < last && kv.tile(next).k_stride == LANES ? kv.tile(next).k : k[n];
    values[n] = kv.tile(first + n).v;
  });
  auto feature = [&](int i) TS_LAMBDA {
    outer_product(acc, [&](auto n) TS_LAMBDA { return KeyValues<FORMAT>::widen(k[n] + i * stride[n]); }, [&](auto r) TS_LAMBDA { return q[r] + i; });
  };
  int i = 0;
  for (; i + LINE <= d; i += LINE) {
    if (fetch)
      each<N>([&](auto n) TS_LAMBDA {
        __builtin_prefetch(ahead[n] + i * LANES, 0, 3);
        __builtin_prefetch(values[n] + i * LANES, 0, 2);
      });
    each<LINE>([&](auto j) TS_LAMBDA { feature(i + j); });
  }
  for (; i < d; ++i) feature(i);
  each<R>([&](auto r) TS_LAMBDA {
    each<N>([&](auto n) TS_LAMBDA {
      if (FORMAT == INT8) acc[r][n] = mul(acc[r][n], load(kv.tile(first + n).k_scale));
      store(scores + r * PARTITION + (first + n) * LANES, acc[r][n]);
    });
  });
}

// The tiles of keys that this thread is likely to need next.
template <int FORMAT>
struct Upcoming {
  const typename KeyValues<FORMAT>::T* keys[PARTITION / LANES];
  int count = 0;
};

// values[r][c ..] += sum over keys of p[r][key] * V[key][c ..] for N runs of 16 features, keys ascending from where the sum
// stopped; each row meets exactly the keys it may see. Tile `first` begins at position `begin`. `next`, if any, is asked for
// meanwhile: the values at hand have come already.
template <int FORMAT, int R, int N>
TS_INLINE void value_tiles(const KeyValues<FORMAT>& kv, int first, const QueryRow* rows, int begin, int end, const float* p, int dp,
                           int c, float* values, const Upcoming<FORMAT>* next) {
  vf acc[R][N];
  auto sums = [&](auto f) TS_LAMBDA {
    each<R>([&](auto r) TS_LAMBDA { each<N>([&](auto n) TS_LAMBDA { f(r, n, values + r * dp + c + n * LANES); }); });
  };
  sums([&](auto r, auto n, const float* from) TS_LAMBDA { acc[r][n] = load(from); });
  for (int key = begin, i = first; key < end; key += LANES, ++i) {
    const auto* v = kv.tile(i).v + c;
    int from[R], to[R], lo = 0, hi = LANES;  // of this tile: a row's keys, and those that all rows see
    each<R>([&](auto r) TS_LAMBDA {
      from[r] = rows[r].lo > key ? rows[r].lo - key : 0;
      to[r] = rows[r].hi - key < LANES ? rows[r].hi - key : LANES;
      lo = from[r] > lo ? from[r] : lo;
      hi = to[r] < hi ? to[r] : hi;
    });
    if (hi < lo) hi = lo;
    auto one_by_one = [&](int begin_at, int end_at) TS_LAMBDA {
      each<R>([&](auto r) TS_LAMBDA {
        const int stop = to[r] < end_at ? to[r] : end_at;
        for (int j = from[r] > begin_at ? from[r] : begin_at; j < stop; ++j)
          each<N>([&](auto n) TS_LAMBDA {
            acc[r][n] = fma(set1(p[r * PARTITION + i * LANES + j]), KeyValues<FORMAT>::widen(v + j * dp + n * LANES), acc[r][n]);
          });
      });
    };
    if (lo > 0) one_by_one(0, lo);
    const auto* ahead = next && i < next->count ? next->keys[i] + c * LANES : nullptr;
    for (int j = lo; j < hi; ++j) {
      if (ahead)
        for (int n = 0; n < N; n += KeyValues<FORMAT>::PER_LINE) __builtin_prefetch(ahead + (j * N + n) * LANES, 0, 2);
      outer_product(acc, [&](auto n) TS_LAMBDA { return KeyValues<FORMAT>::widen(v + j * dp + n * LANES); },
                    [&](auto r) TS_LAMBDA { return p + r * PARTITION + i * LANES + j; });
    }
    if (hi < LANES) one_by_one(hi, LANES);
  }
  sums([&](auto r, auto n, float* to) TS_LAMBDA { store(to, acc[r][n]); });
}

// Call f(R, N)(first row, first step) so that R rows x N steps cover rows x steps, with sums for about half of the registers at
// a time: few rows take several steps at once, to have enough independent sums in flight.
template <int R, class F>
TS_INLINE void cover_steps(int row, int begin, int end, F&& f) {
  constexpr int N = R == 1 ? 4 : HOLDS_RUNS ? (R <= 4 ? 4 : 2) : R <= 3 ? 2 : 1;
  int step = begin;
  for (; end - step >= N; step += N) f(std::integral_constant<int, R>(), std::integral_constant<int, N>(), row, step);
  for (; step < end; ++step) f(std::integral_constant<int, R>(), std::integral_constant<int, 1>(), row, step);
}
template <int R = REGISTER_ROWS, class F>
TS_INLINE void cover(int row, int last_row, int begin, int end, F&& f) {
  for (; last_row - row >= R; row += R) cover_steps<R>(row, begin, end, f);
  if constexpr (R > 1) {
    if (row < last_row) cover<R - 1>(row, last_row, begin, end, f);
  }
}

// Scores of one row to weights, in place; what lies outside the row's keys becomes zero.
template <int FORMAT>
inline Partial weigh(const KeyValues<FORMAT>& kv, float* s, int from, int to) {
  if (from >= to) return {-INFINITY, 0.0f};
  auto valid = [&](vf x, int i, float other) {
    if (from <= i && i + LANES <= to) return x;
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

// One partition for a tile of rows: partial[r] and values[r][padded head_dim]. A row that sees no key of it gets sum 0 and
// max -inf. Keys before `shared` lie in the same blocks for all rows. `next` is what the thread will need afterwards.
template <int FORMAT>
class PartitionRun {
 public:
  PartitionRun(KeyValues<FORMAT>& kv, const RowTile& tile, int partition, int shared, int d, float* scores, Partial* partial, float* values,
               const Upcoming<FORMAT>& next)
      : kv_(kv), tile_(tile), d_(d), dp_(padded(d)), scores_(scores), partial_(partial), values_(values), next_(next) {
    int lo, hi;
    tile.reach(0, tile.num_rows, lo, hi);
    const int first = partition * PARTITION, last = first + PARTITION;
    origin_ = lo > first ? lo / LANES * LANES : first;
    end_ = hi < last ? hi : last;
    if (end_ < origin_) end_ = origin_;  // windows that begin after this partition
    fork_ = tile.num_spans == 1 || shared > end_ ? end_ : shared > origin_ ? shared : origin_;
  }

  void run() {
    kv_.open(tile_.spans[0].blocks, origin_, origin_, fork_);
    score(0, tile_.num_rows, origin_, fork_);
    for (int s = 0; s < tile_.num_spans; ++s) {
      const RowSpan& span = tile_.spans[s];
      const int end = open_own(span);
      score(span.begin, span.end, fork_, end);
      for (int r = span.begin; r < span.end; ++r) {
        const QueryRow& row = tile_.rows[r];
        const int from = row.lo > origin_ ? row.lo : origin_, to = row.hi < end_ ? row.hi : end_;
        partial_[r] = weigh(kv_, scores_ + r * PARTITION, from - origin_, to - origin_);
      }
    }
    memset(values_, 0, tile_.num_rows * dp_ * sizeof(float));
    sum_values(0, tile_.num_rows, origin_, fork_);
    for (int s = 0; s < tile_.num_spans; ++s) {
      const RowSpan& span = tile_.spans[s];
      sum_values(span.begin, span.end, fork_, open_own(span));
    }
  }

 private:
  // The keys that a sequence has to itself; returns their end.
  int open_own(const RowSpan& span) {
    if (fork_ >= end_) return fork_;
    int lo, hi;
    tile_.reach(span.begin, span.end, lo, hi);
    const int end = hi < end_ ? hi : end_;
    kv_.open(span.blocks, origin_, fork_, end);
    return end;
  }

  // Four tiles of keys at a time for all the rows; the first rows to meet them ask for what comes next.
  void score(int row, int last_row, int begin, int end) {
    const int last = tile_of(end + LANES - 1);
    for (int i = tile_of(begin); i < last; i += QUAD) {
      const int next = i + QUAD < last ? i + QUAD : last;
      cover(row, last_row, i, next, [&](auto R, auto N, int r, int step) {
        constexpr int rows = decltype(R)::value, steps = decltype(N)::value;
        float* scores = scores_ + r * PARTITION;
        score_tiles<FORMAT, rows, steps>(kv_, step, last, tile_.rows + r, d_, r == row, scores);
      });
    }
  }

  // Many rows meet a few tiles of values at a time; few rows need not return to any.
  void sum_values(int row, int last_row, int begin, int end) {
    const int step = last_row - row > REGISTER_ROWS ? QUAD * LANES : PARTITION;
    for (int key = begin; key < end; key += step) {
      const int stop = key + step < end ? key + step : end;
      cover(row, last_row, 0, dp_ / LANES, [&](auto R, auto N, int r, int step) {
        constexpr int rows = decltype(R)::value, steps = decltype(N)::value;
        const QueryRow* queries = tile_.rows + r;
        const float* p = scores_ + r * PARTITION;
        float* values = values_ + r * dp_;
        value_tiles<FORMAT, rows, steps>(kv_, tile_of(key), queries, key, stop, p, dp_, step * LANES, values, r == 0 ? &next_ : nullptr);
      });
    }
  }

  int tile_of(int position) const { return (position - origin_) / LANES; }

  KeyValues<FORMAT>& kv_;
  const RowTile& tile_;
  int d_, dp_;
  float* scores_;
  Partial* partial_;
  float* values_;
  const Upcoming<FORMAT>& next_;
  int origin_, end_;
  int fork_;  // where the sequences' blocks part: shared keys before it, a sequence's own from here
};

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
