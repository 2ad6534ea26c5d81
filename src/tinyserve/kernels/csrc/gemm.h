// Matrix products over packed weights, one panel of 16 output columns at a time.
//
// Every output element has one accumulator lane and meets its input features in ascending order, whatever the number
// of rows, so every tile shape gives the same bits. Integer sums inside a group are exact; the group's end is the same
// two fused multiply-adds everywhere:  acc = fma(sum, w_scale * a_scale, acc);  acc = fma(w_min, a_sum, acc).
#pragma once
#include <algorithm>

#include "abi.h"
#include "simd.h"

namespace {

constexpr int ROW_BLOCK = 128;  // rows that share one pass over a panel; their activations stay in L2

// Quantized activations of a tile of R rows, int8 per group of 32 for u4 weights, int16 per group for int8 weights. Rows lie
// side by side, so that a tile reads one stream: q[word][R] with 4-byte words along the features, scale and sum [group][R].
struct Acts {
  const uint8_t* q;
  const float* scale;
  const float* sum;  // scale * sum of q
};

TS_INLINE int64_t group_bytes(const Weight& w) {
  const int64_t values = w.format == U4 ? int64_t(LANES) * w.group / 2 : int64_t(LANES) * w.group;
  return values + LANES * (w.f16_scale ? 2 : 4) * (w.has_min ? 2 : 1);
}
TS_INLINE int64_t panel_bytes(const Weight& w) {
  if (w.format == F32) return int64_t(w.k) * LANES * 4;
  if (w.format == F16 || w.format == BF16) return int64_t(w.k) * LANES * 2;
  return (w.k / w.group) * group_bytes(w);
}
TS_INLINE vf load_scale(const uint8_t* p, bool f16) { return f16 ? load_f16((const uint16_t*)p) : load((const float*)p); }

// What comes next, to stream in while this panel is used by every row: `bytes` at `next` (or none), asked for in steps.
struct Ahead {
  const uint8_t* next;
  int64_t bytes;
  int steps;  // of a tile
};
// A tile's part of it.
class Fetch {
 public:
  Fetch(const Ahead& a, int tile, int tiles) : share_(a.next ? a.bytes / (int64_t(tiles) * a.steps) + 1 : 0) {
    at_ = due_ = a.next ? a.next + int64_t(tile) * a.steps * share_ : nullptr;
  }
  TS_INLINE void step() {
    due_ += share_;
    for (; at_ < due_; at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  int64_t share_;
  const uint8_t *at_, *due_;
};

// A run of input features of a panel. Rows meet one block of float weights after another, so that the block and what they
// multiply with it stay in L1; `c` carries their sums.
struct Block {
  const Weight& w;
  const uint8_t* data;
  int steps;   // features (float weights) or groups
  bool first;  // sums begin at zero
};
template <int R>
TS_INLINE void begin(const Block& b, const float* c, vf (&acc)[R]) {
  each<R>([&](auto r) TS_LAMBDA { acc[r] = b.first ? zero() : load(c + r * LANES); });
}
template <int R>
TS_INLINE void keep(const vf (&acc)[R], float* c) {
  each<R>([&](auto r) TS_LAMBDA { store(c + r * LANES, acc[r]); });
}

// ---- rows in tiles ----------------------------------------------------------------------------------------------

// tile<rows>(first, fetch), for a number of rows that is known only now.
template <int R, class F>
TS_INLINE void one_tile(int first, int rows, const Fetch& fetch, F&& tile) {
  if constexpr (R > 1) {
    if (rows < R) return one_tile<R - 1>(first, rows, fetch, tile);
  }
  tile.template operator()<R>(first, fetch);
}

// As few tiles as R rows allow, of even sizes: 7 rows are 4 + 3 rather than 6 + 1, since a tile unpacks the block anew.
struct Tiles {
  int count, size, larger;  // the first `larger` tiles have one row more
  Tiles(int rows, int most) : count((rows + most - 1) / most), size(rows / count), larger(rows % count) {}
  int rows(int tile) const { return size + (tile < larger); }
  int first(int tile) const { return tile * size + std::min(tile, larger); }
  int of(int row) const { return row < larger * (size + 1) ? row / (size + 1) : (row - larger) / size; }
};

template <int R, class F>
TS_INLINE void in_tiles(int rows, const Ahead& ahead, F&& tile) {
  const Tiles tiles(rows, R);
  for (int i = 0; i < tiles.count; ++i) one_tile<R>(tiles.first(i), tiles.rows(i), Fetch(ahead, i, tiles.count), tile);
}

// ---- quantizing activations -------------------------------------------------------------------------------------

// Sixteen whole numbers within the range of T, as words of four bytes that lie `stride` bytes apart.
template <class T>
TS_INLINE void store_words(uint8_t* q, int64_t stride, vf x) {
  alignas(32) T narrow[LANES];
#if defined(TS_ISA_AVX2)
  const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)), 0xD8);
  if constexpr (sizeof(T) == 1)
    _mm_store_si128((__m128i*)narrow, _mm_packs_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
  else _mm256_store_si256((__m256i*)narrow, both);
#elif defined(TS_ISA_AVX512)
  const __m512i whole = _mm512_cvtps_epi32(x.v);
  if constexpr (sizeof(T) == 1) _mm_store_si128((__m128i*)narrow, _mm512_cvtepi32_epi8(whole));
  else _mm256_store_si256((__m256i*)narrow, _mm512_cvtepi32_epi16(whole));
#else
  float wide[LANES];
  store(wide, x);
  for (int i = 0; i < LANES; ++i) narrow[i] = static_cast<T>(wide[i]);
#endif
  for (int i = 0; i < LANES; i += 4 / sizeof(T), q += stride) memcpy(q, narrow + i, 4);
}

// One row: q = round(x * limit / max|x|) per group, half to even. A group that holds a NaN or an infinity gets a NaN
// scale, so that the damage shows in this row's results and nowhere else.
// Values and scales go to row `r` of the `rows` of its tile.
template <class T>
inline void quantize_row(const float* x, int k, int group, T* q, float* scale, float* sum, int r, int rows) {
  constexpr float limit = sizeof(T) == 1 ? 127.0f : 32767.0f;
  constexpr int WORD = 4 / sizeof(T);
  q += r * WORD, scale += r, sum += r;
  for (int g = 0; g < k / group; ++g, x += group, scale += rows, sum += rows) {
    vf biggest = zero(), poison = zero();
    for (int i = 0; i < group; i += LANES) {
      const vf v = load(x + i);
      biggest = max(abs(v), biggest);
      poison = fma(v, zero(), poison);
    }
    const float top = max_lanes(biggest);
    const bool finite = sum_lanes(poison) == 0.0f;
    const float inverse = finite && top > 0.0f ? limit / top : 0.0f;
    vf total = zero();
    for (int i = 0; i < group; i += LANES) {
      const vf v = finite && inverse < 3.0e38f ? round(mul(load(x + i), set1(inverse))) : zero();
      store_words<T>((uint8_t*)q, 4 * rows, v);
      q += rows * LANES;
      total = add(total, v);
    }
    *scale = finite ? top / limit : NAN;
    *sum = *scale * sum_lanes(total);  // the sum itself is a small integer: exact in any order
  }
}

// The end of a group for the row at `at` of the tile's scales: its whole-number sums and, where there is one, its minimum.
TS_INLINE vf add_group(vf acc, vf sum, vf scale, const Acts& a, int64_t at) { return fma(sum, mul(scale, set1(a.scale[at])), acc); }
TS_INLINE vf add_min(vf acc, vf least, const Acts& a, int64_t at) { return fma(least, set1(a.sum[at]), acc); }

// ---- float weights ----------------------------------------------------------------------------------------------

template <int FORMAT>
TS_INLINE vf load_weights(const uint8_t* p, int64_t k) {
  if constexpr (FORMAT == F32) return load((const float*)p + k * LANES);
  else if constexpr (FORMAT == F16) return load_f16((const uint16_t*)p + k * LANES);
  else return load_bf16((const uint16_t*)p + k * LANES);
}

constexpr int FLOAT_STEP = 4;  // features between two looks at what to fetch

template <int FORMAT, int R>
TS_INLINE void float_tile(const Block& b, Fetch fetch, const float* x, int64_t stride, float* c) {
  vf acc[R];
  begin(b, c, acc);
  auto step = [&](int i) TS_LAMBDA {
    const vf w = load_weights<FORMAT>(b.data, i);
    each<R>([&](auto r) TS_LAMBDA { acc[r] = fma(set1(x[r * stride + i]), w, acc[r]); });
  };
  int i = 0;
  for (; i + FLOAT_STEP <= b.steps; i += FLOAT_STEP) {
    fetch.step();
    each<FLOAT_STEP>([&](auto u) TS_LAMBDA { step(i + u); });
  }
  for (; i < b.steps; ++i) step(i);
  keep(acc, c);
}

#if defined(TS_ISA_AVX512)
constexpr int FLOAT_ROWS = 12;
#else
constexpr int FLOAT_ROWS = 6;
#endif

template <int FORMAT>
struct FloatTiles {
  Block b;
  const float* x;
  int64_t stride;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, const Fetch& fetch) const {
    float_tile<FORMAT, R>(b, fetch, x + row * stride, stride, c + row * LANES);
  }
};

// ---- four-bit weights -------------------------------------------------------------------------------------------
// A group's 256 bytes are 8 runs of 32: run j holds input features 4j .. 4j+3; byte 4c + i holds feature 4j + i of
// column c in its low and of column c + 8 in its high nibble.

constexpr int64_t U4_VALUES = LANES * 32 / 2;
constexpr int64_t U4_WIDE = LANES * 32 + 2 * LANES * 4;  // a group after widening: bytes, then f32 scales and minima

// Widen a panel once, to be used by many rows: nibbles to bytes (columns 0-7 then 8-15 in each run), scales to f32.
inline void widen_u4(const Weight& w, const uint8_t* panel, uint8_t* wide) {
  const int64_t scale_bytes = LANES * (w.f16_scale ? 2 : 4);
  for (int g = 0; g < w.k / 32; ++g, panel += group_bytes(w), wide += U4_WIDE) {
    for (int j = 0; j < 8; ++j)
      for (int i = 0; i < 32; ++i) {
        wide[64 * j + i] = panel[32 * j + i] & 15;
        wide[64 * j + 32 + i] = panel[32 * j + i] >> 4;
      }
    float* f = (float*)(wide + LANES * 32);
    store(f, load_scale(panel + U4_VALUES, w.f16_scale));
    store(f + LANES, load_scale(panel + U4_VALUES + scale_bytes, w.f16_scale));
  }
}

#if defined(TS_ISA_AVX2)

TS_INLINE __m256i broadcast4(const uint8_t* p) {
  int32_t word;
  memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}

// WIDE: the panel went through widen_u4.
template <int R, bool WIDE>
inline void u4_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  const int64_t step = WIDE ? U4_WIDE : group_bytes(w);
  vf acc[R];
  begin(b, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += step) {
    fetch.step();
    __m256i s0[R], s1[R];
    each<8>([&](auto j) TS_LAMBDA {
      __m256i w0, w1;
      if (WIDE) {
        w0 = _mm256_loadu_si256((const __m256i*)(panel + 64 * j));
        w1 = _mm256_loadu_si256((const __m256i*)(panel + 64 * j + 32));
      } else {
        const __m256i both = _mm256_loadu_si256((const __m256i*)(panel + 32 * j));
        w0 = _mm256_and_si256(both, low);
        w1 = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      }
      each<R>([&](auto r) TS_LAMBDA {
        const __m256i x = broadcast4(a.q + ((8 * g + j) * R + r) * 4);
        const __m256i p0 = _mm256_maddubs_epi16(w0, x), p1 = _mm256_maddubs_epi16(w1, x);
        s0[r] = j == 0 ? p0 : _mm256_add_epi16(s0[r], p0);  // at most 8 * 2 * 15 * 127: fits int16
        s1[r] = j == 0 ? p1 : _mm256_add_epi16(s1[r], p1);
        // Pin the order: left alone, the compiler issues all products first and spills every register.
        asm("" : "+x"(s0[r]), "+x"(s1[r]));
      });
    });
    const int64_t scale_bytes = LANES * (w.f16_scale ? 2 : 4);
    vf scale, least;
    if (WIDE) {
      scale = load((const float*)(panel + LANES * 32));
      least = load((const float*)(panel + LANES * 32) + LANES);
    } else {
      scale = load_scale(panel + U4_VALUES, w.f16_scale);
      least = load_scale(panel + U4_VALUES + scale_bytes, w.f16_scale);
    }
    each<R>([&](auto r) TS_LAMBDA {
      const vf sum = {_mm256_cvtepi32_ps(_mm256_madd_epi16(s0[r], ones)), _mm256_cvtepi32_ps(_mm256_madd_epi16(s1[r], ones))};
      acc[r] = add_group(acc[r], sum, scale, a, g * R + r);
      acc[r] = add_min(acc[r], least, a, g * R + r);
    });
  }
  keep(acc, c);
}
constexpr int U4_ROWS = 6;

#elif defined(TS_ISA_AVX512)

template <int R, bool WIDE>
inline void u4_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const __m256i low = _mm256_set1_epi8(15);
  const int64_t step = WIDE ? U4_WIDE : group_bytes(w);
  vf acc[R];
  begin(b, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += step) {
    fetch.step();
    __m512i s[R];
    for (int r = 0; r < R; ++r) s[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      __m512i wide;
      if (WIDE) {
        wide = _mm512_loadu_si512(panel + 64 * j);
      } else {
        const __m256i both = _mm256_loadu_si256((const __m256i*)(panel + 32 * j));
        const __m256i w0 = _mm256_and_si256(both, low), w1 = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        wide = _mm512_inserti64x4(_mm512_castsi256_si512(w0), w1, 1);
      }
      for (int r = 0; r < R; ++r) {
        int32_t word;
        memcpy(&word, a.q + ((8 * g + j) * R + r) * 4, 4);
        s[r] = _mm512_dpbusd_epi32(s[r], wide, _mm512_set1_epi32(word));
      }
    }
    const int64_t scale_bytes = LANES * (w.f16_scale ? 2 : 4);
    const vf scale = WIDE ? load((const float*)(panel + LANES * 32)) : load_scale(panel + U4_VALUES, w.f16_scale);
    const vf least = WIDE ? load((const float*)(panel + LANES * 32) + LANES) : load_scale(panel + U4_VALUES + scale_bytes, w.f16_scale);
    for (int r = 0; r < R; ++r) {
      acc[r] = add_group(acc[r], {_mm512_cvtepi32_ps(s[r])}, scale, a, g * R + r);
      acc[r] = add_min(acc[r], least, a, g * R + r);
    }
  }
  keep(acc, c);
}
constexpr int U4_ROWS = 8;

#else

template <int R, bool WIDE>
inline void u4_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t step = WIDE ? U4_WIDE : group_bytes(w);
  const int64_t scale_bytes = LANES * (w.f16_scale ? 2 : 4);
  vf acc[R];
  begin(b, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += step) {
    fetch.step();
    int32_t sums[R][LANES] = {};
    for (int j = 0; j < 8; ++j)
      for (int r = 0; r < R; ++r) {
        const int8_t* x = (const int8_t*)a.q + ((8 * g + j) * R + r) * 4;
        for (int column = 0; column < LANES; ++column)
          for (int i = 0; i < 4; ++i) {
            const int byte = 4 * (column & 7) + i;
            const int value = WIDE ? panel[64 * j + 32 * (column >> 3) + byte]
                                   : (panel[32 * j + byte] >> (column < 8 ? 0 : 4)) & 15;
            sums[r][column] += value * x[i];
          }
      }
    const vf scale = WIDE ? load((const float*)(panel + LANES * 32)) : load_scale(panel + U4_VALUES, w.f16_scale);
    const vf least = WIDE ? load((const float*)(panel + LANES * 32) + LANES) : load_scale(panel + U4_VALUES + scale_bytes, w.f16_scale);
    for (int r = 0; r < R; ++r) {
      float f[LANES];
      for (int i = 0; i < LANES; ++i) f[i] = static_cast<float>(sums[r][i]);
      acc[r] = add_group(acc[r], load(f), scale, a, g * R + r);
      acc[r] = add_min(acc[r], least, a, g * R + r);
    }
  }
  keep(acc, c);
}
constexpr int U4_ROWS = 4;

#endif

// ---- int8 weights, int16 activations ----------------------------------------------------------------------------
// A group's bytes are runs of 32: run j holds features 2j and 2j + 1 of each of the 16 columns, side by side.

#if defined(TS_ISA_AVX2)

template <int R>
inline void int8_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t values = int64_t(LANES) * w.group, scale_bytes = LANES * (w.f16_scale ? 2 : 4);
  vf acc[R];
  begin(b, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += group_bytes(w)) {
    fetch.step();
    __m256i s0[R], s1[R];
    each<R>([&](auto r) TS_LAMBDA { s0[r] = s1[r] = _mm256_setzero_si256(); });
    const uint8_t* x = a.q + int64_t(2) * w.group * g * R;
    for (int i = 0; i < w.group / 2; i += 8, x += 8 * R * 4)
      each<8>([&](auto j) TS_LAMBDA {
        const __m256i w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(panel + 32 * (i + j))));
        const __m256i w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(panel + 32 * (i + j) + 16)));
        each<R>([&](auto r) TS_LAMBDA {
          const __m256i pair = broadcast4(x + (j * R + r) * 4);
          s0[r] = _mm256_add_epi32(s0[r], _mm256_madd_epi16(w0, pair));
          s1[r] = _mm256_add_epi32(s1[r], _mm256_madd_epi16(w1, pair));
          asm("" : "+x"(s0[r]), "+x"(s1[r]));  // pin the order, as in u4_tile
        });
      });
    const vf scale = load_scale(panel + values, w.f16_scale);
    each<R>([&](auto r) TS_LAMBDA {
      const vf sum = {_mm256_cvtepi32_ps(s0[r]), _mm256_cvtepi32_ps(s1[r])};
      acc[r] = add_group(acc[r], sum, scale, a, g * R + r);
      if (w.has_min) acc[r] = add_min(acc[r], load_scale(panel + values + scale_bytes, w.f16_scale), a, g * R + r);
    });
  }
  keep(acc, c);
}
constexpr int INT8_ROWS = 4;

#elif defined(TS_ISA_AVX512)

template <int R>
inline void int8_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t values = int64_t(LANES) * w.group, scale_bytes = LANES * (w.f16_scale ? 2 : 4);
  vf acc[R];
  begin(b, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += group_bytes(w)) {
    fetch.step();
    __m512i s[R];
    for (int r = 0; r < R; ++r) s[r] = _mm512_setzero_si512();
    const uint8_t* x = a.q + int64_t(2) * w.group * g * R;
    for (int j = 0; j < w.group / 2; ++j) {
      const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)(panel + 32 * j)));
      for (int r = 0; r < R; ++r) {
        int32_t pair;
        memcpy(&pair, x + (j * R + r) * 4, 4);
        s[r] = _mm512_dpwssd_epi32(s[r], wide, _mm512_set1_epi32(pair));
      }
    }
    const vf scale = load_scale(panel + values, w.f16_scale);
    for (int r = 0; r < R; ++r) {
      acc[r] = add_group(acc[r], {_mm512_cvtepi32_ps(s[r])}, scale, a, g * R + r);
      if (w.has_min) acc[r] = add_min(acc[r], load_scale(panel + values + scale_bytes, w.f16_scale), a, g * R + r);
    }
  }
  keep(acc, c);
}
constexpr int INT8_ROWS = 8;

#else

template <int R>
inline void int8_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t values = int64_t(LANES) * w.group, scale_bytes = LANES * (w.f16_scale ? 2 : 4);
  vf acc[R];
  begin(b, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += group_bytes(w)) {
    fetch.step();
    int32_t sums[R][LANES] = {};
    for (int j = 0; j < w.group / 2; ++j)
      for (int r = 0; r < R; ++r) {
        int16_t pair[2];
        memcpy(pair, a.q + int64_t(2) * w.group * g * R + (j * R + r) * 4, 4);
        const int8_t* q = (const int8_t*)panel + 32 * j;
        for (int column = 0; column < LANES; ++column)
          sums[r][column] += q[2 * column] * pair[0] + q[2 * column + 1] * pair[1];
      }
    const vf scale = load_scale(panel + values, w.f16_scale);
    for (int r = 0; r < R; ++r) {
      float f[LANES];
      for (int i = 0; i < LANES; ++i) f[i] = static_cast<float>(sums[r][i]);
      acc[r] = add_group(acc[r], load(f), scale, a, g * R + r);
      if (w.has_min) acc[r] = add_min(acc[r], load_scale(panel + values + scale_bytes, w.f16_scale), a, g * R + r);
    }
  }
  keep(acc, c);
}
constexpr int INT8_ROWS = 4;

#endif

// Where the activations of the tile that begins at `row` lie.
template <class Q>
TS_INLINE Acts acts_of(const Weight& w, const Acts& a, int64_t row) {
  const int64_t at = row * (w.k / w.group);
  return {a.q + row * w.k * sizeof(Q), a.scale + at, a.sum + at};
}

template <bool WIDE>
struct U4Tiles {
  Block b;
  const Acts& a;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, const Fetch& fetch) const {
    u4_tile<R, WIDE>(b, fetch, acts_of<int8_t>(b.w, a, row), c + row * LANES);
  }
};

struct Int8Tiles {
  Block b;
  const Acts& a;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, const Fetch& fetch) const {
    int8_tile<R>(b, fetch, acts_of<int16_t>(b.w, a, row), c + row * LANES);
  }
};

// ---- a panel over any number of rows ----------------------------------------------------------------------------

constexpr int FLOAT_BLOCK = 128;       // features of a block: it and six rows of activations take half of L1
constexpr int WIDEN_FROM_ROWS = 32;    // of a four-bit panel; two-byte weights gain from the second tile on

// Rows of the largest tile that integer weights of a format meet: the layout of their activations.
TS_INLINE int tile_rows(int format) { return format == U4 ? U4_ROWS : INT8_ROWS; }

template <int FORMAT>
inline void float_panel(const Weight& w, const uint8_t* panel, const uint8_t* next, const float* x, int64_t stride, int rows, float* c,
                        uint8_t* wide) {
  constexpr int64_t bytes = LANES * (FORMAT == F32 ? 4 : 2);
  for (int k = 0; k < w.k; k += FLOAT_BLOCK) {
    const Block b = {w, panel + k * bytes, std::min(FLOAT_BLOCK, w.k - k), k == 0};
    const Ahead ahead = {next ? next + k * bytes : nullptr, b.steps * bytes, std::max(1, b.steps / FLOAT_STEP)};
    if (FORMAT == F32 || rows <= FLOAT_ROWS) {
      in_tiles<FLOAT_ROWS>(rows, ahead, FloatTiles<FORMAT>{b, x + k, stride, c});
    } else {
      for (int i = 0; i < b.steps; ++i) store((float*)wide + i * LANES, load_weights<FORMAT>(b.data, i));
      in_tiles<FLOAT_ROWS>(rows, ahead, FloatTiles<F32>{{w, wide, b.steps, b.first}, x + k, stride, c});
    }
  }
}

inline void u4_panel(const Weight& w, const uint8_t* panel, const Ahead& ahead, const Acts& a, int rows, float* c, uint8_t* wide) {
  const int groups = w.k / 32;
  if (rows < WIDEN_FROM_ROWS) return in_tiles<U4_ROWS>(rows, ahead, U4Tiles<false>{{w, panel, groups, true}, a, c});
  widen_u4(w, panel, wide);
  in_tiles<U4_ROWS>(rows, ahead, U4Tiles<true>{{w, wide, groups, true}, a, c});
}

// c[rows][16] = activations x panel. `x` for float weights, `a` for integer ones; `next` is the panel to fetch meanwhile,
// or 0; `wide` is scratch for widened weights.
inline void run_panel(const Weight& w, const uint8_t* panel, const uint8_t* next, const float* x, int64_t x_stride, const Acts& a,
                      int rows, float* c, uint8_t* wide) {
  const int groups = w.group ? w.k / w.group : 0;
  switch (w.format) {
    case F32: return float_panel<F32>(w, panel, next, x, x_stride, rows, c, wide);
    case F16: return float_panel<F16>(w, panel, next, x, x_stride, rows, c, wide);
    case BF16: return float_panel<BF16>(w, panel, next, x, x_stride, rows, c, wide);
    case INT8: return in_tiles<INT8_ROWS>(rows, {next, panel_bytes(w), groups}, Int8Tiles{{w, panel, groups, true}, a, c});
    case U4: return u4_panel(w, panel, {next, panel_bytes(w), groups}, a, rows, c, wide);
  }
}

}  // namespace
