// Matrix products over packed weights, one panel of 16 output columns at a time.
//
// Every output element has one accumulator lane and meets its input features in ascending order, whatever the number
// of rows, so every tile shape gives the same bits. Integer sums inside a group are exact; the group's end is the same
// two fused multiply-adds everywhere:  acc = fma(sum, w_scale * a_scale, acc);  acc = fma(w_min, a_sum, acc).
#pragma once
#include <algorithm>

#include "abi.h"
#include "simd.h"
#include "tasks.h"

namespace {

// Prepared activations of a tile of R rows: int8 per group of 32 for u4 weights, int16 per group for int8 weights. Rows lie
// side by side, so that a tile reads one stream: q[word][R] with 4-byte words along the features, scale and sum [group][R].
// For the matrix unit (amx.h) q is [group][R][features], of int16 [group][high, low][R][features]. For BF16X2 weights q is
// [step of 32][part][R][features], and there are no scales.
struct Acts {
  uint8_t* q;
  float* scale;
  float* sum;  // scale * sum of q
};

// Where the activations of the tile that begins at `row` lie.
TS_INLINE Acts acts_of(const Weight& w, const Acts& a, int64_t row) {
  const int64_t at = row * (w.k / w.group);
  return {a.q + row * w.k * act_bytes(w), a.scale + at, a.sum + at};
}

// The scales of a group, one a column; minima, where there are any, follow them and are as long.
TS_INLINE int64_t scale_bytes(const Weight& w) { return LANES * (w.f16_scale ? 2 : 4); }
TS_INLINE int64_t group_bytes(const Weight& w) {
  const int64_t values = w.format == U4 ? int64_t(LANES) * w.group / 2 : int64_t(LANES) * w.group;
  return values + scale_bytes(w) * (w.has_min ? 2 : 1);
}
TS_INLINE int64_t panel_bytes(const Weight& w) {
  if (w.format == F32) return int64_t(w.k) * LANES * 4;
  if (w.format == F16) return int64_t(w.k) * LANES * 2;
  if (w.format == BF16 || w.format == BF16X2) return int64_t(w.k + 1) / 2 * LANES * 4;
  return (w.k / w.group) * group_bytes(w);
}
TS_INLINE vf load_scale(const uint8_t* p, bool f16) { return f16 ? load_f16((const uint16_t*)p) : load((const float*)p); }
// The minima of a group of four bits, whose scales are at `scales`: where none are stored, -8 scales.
TS_INLINE vf load_u4_min(const Weight& w, const uint8_t* scales, vf scale) {
  return w.has_min ? load_scale(scales + scale_bytes(w), w.f16_scale) : mul(scale, set1(-8.0f));
}

// What to prefetch while this panel is used by every row: `bytes` at `next` (or none), in steps.
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
TS_INLINE void begin(bool first, const float* c, vf (&acc)[R]) {
  each<R>([&](auto r) TS_LAMBDA { acc[r] = first ? zero() : load(c + r * LANES); });
}
template <int R>
TS_INLINE void keep(const vf (&acc)[R], float* c) {
  each<R>([&](auto r) TS_LAMBDA { store(c + r * LANES, acc[r]); });
}

// ---- rows in tiles ----------------------------------------------------------------------------------------------

// tile<rows>(first, fetch), for a number of rows that is known only now.
template <int R, int LEAST, class F>
TS_INLINE void one_tile(int first, int rows, const Fetch& fetch, F&& tile) {
  if constexpr (R > LEAST) {
    if (rows < R) return one_tile<R - 1, LEAST>(first, rows, fetch, tile);
  }
  tile.template operator()<R>(first, fetch);
}

// As few tiles as R rows allow, of even sizes: 7 rows are 4 + 3 rather than 6 + 1, since a tile unpacks the block anew.
struct Tiles {
  int count, size, larger;  // the first `larger` tiles have one row more
  Tiles(int rows, int most) : count((rows + most - 1) / most), size(rows / count), larger(rows % count) {}
  int rows(int tile) const { return size + (tile < larger); }
  int first(int tile) const { return tile * size + std::min(tile, larger); }
};

template <int R, int LEAST = 1, class F>
TS_INLINE void in_tiles(int rows, const Ahead& ahead, F&& tile) {
  const Tiles tiles(rows, R);
  for (int i = 0; i < tiles.count; ++i) one_tile<R, LEAST>(tiles.first(i), tiles.rows(i), Fetch(ahead, i, tiles.count), tile);
}

// ---- quantizing activations -------------------------------------------------------------------------------------

// Sixteen integers within the range of T, as words of four bytes that lie `stride` bytes apart.
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

// The end of a group for the row at `at` of the tile's scales: its integer sums and, where there is one, its minimum.
TS_INLINE vf add_group(vf acc, vf sum, vf scale, const Acts& a, int64_t at) { return fma(sum, mul(scale, set1(a.scale[at])), acc); }
TS_INLINE vf add_min(vf acc, vf least, const Acts& a, int64_t at) { return fma(least, set1(a.sum[at]), acc); }

// ---- float weights ----------------------------------------------------------------------------------------------

template <int FORMAT>
TS_INLINE vf load_weights(const uint8_t* p, int64_t k, [[maybe_unused]] bool odd) {
  if constexpr (FORMAT == F32) return load((const float*)p + k * LANES);
  else if constexpr (FORMAT == F16) return load_f16((const uint16_t*)p + k * LANES);
  else return load_bf16_of_pairs((const uint32_t*)p + k / 2 * LANES, odd);
}

constexpr int FLOAT_STEP = 4;  // features between two looks at what to fetch
#if defined(TS_ISA_AVX512)
constexpr int FLOAT_ROWS = 12, FLOAT_PANELS = 2;
#else
constexpr int FLOAT_ROWS = 6, FLOAT_PANELS = 1;
#endif

// R rows times one or two panels, `panel_bytes` apart; c[panel][MAX_BLOCK_ROWS][16].
template <int FORMAT, int R, int PANELS>
TS_INLINE void float_tile(const Block& b, int64_t panel_bytes, Fetch fetch, const float* x, int64_t stride, float* c) {
  vf acc[PANELS][R];
  each<PANELS>([&](auto p) TS_LAMBDA { begin(b.first, c + p * MAX_BLOCK_ROWS * LANES, acc[p]); });
  auto step = [&](int i, bool odd) TS_LAMBDA {
    vf w[PANELS];
    each<PANELS>([&](auto p) TS_LAMBDA { w[p] = load_weights<FORMAT>(b.data + p * panel_bytes, i, odd); });
    each<R>([&](auto r) TS_LAMBDA {
      const vf factor = set1(x[r * stride + i]);
      each<PANELS>([&](auto p) TS_LAMBDA { acc[p][r] = fma(factor, w[p], acc[p][r]); });
    });
  };
  int i = 0;
  for (; i + FLOAT_STEP <= b.steps; i += FLOAT_STEP) {
    fetch.step();
    each<FLOAT_STEP>([&](auto u) TS_LAMBDA { step(i + u, u % 2); });
  }
  for (; i < b.steps; ++i) step(i, i % 2);
  each<PANELS>([&](auto p) TS_LAMBDA { keep(acc[p], c + p * MAX_BLOCK_ROWS * LANES); });
}

template <int FORMAT, int PANELS>
struct FloatTiles {
  Block b;
  int64_t panel_bytes;
  const float* x;
  int64_t stride;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, const Fetch& fetch) const {
    float_tile<FORMAT, R, PANELS>(b, panel_bytes, fetch, x + row * stride, stride, c + row * LANES);
  }
};

// ---- bf16 weights, activations in two parts ----------------------------------------------------------------------
// An f32 activation is the sum of two bf16 numbers but for 2^-17 of it, and a product of two bf16 numbers is exact in f32. The order
// of additions is that of the matrix unit's instruction (TDPBF16PS in Intel's manual): over 32 features, the even and the odd ones
// are summed apart from zero up, and added to what there is. Elsewhere this takes twice the multiplications of f32 activations.

constexpr int BF16_STEP = 32, BF16_PARTS = 2;

// Sixteen floats as bf16: a first part cut off, so that it is never larger than they, and a second one rounded.
TS_INLINE void split_in_two(uint16_t* first, uint16_t* second, vf x) {
#if defined(TS_ISA_AVX512)
  auto upper = [](uint16_t* p, __m512i bits) TS_LAMBDA { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16))); };
  const __m512i bits = _mm512_castps_si512(x.v);
  const vf rest = sub(x, {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)))});
  upper(first, bits);
  upper(second, _mm512_add_epi32(_mm512_castps_si512(rest.v), _mm512_set1_epi32(0x8000)));
#else
  float whole[LANES];
  store(whole, x);
  for (int i = 0; i < LANES; ++i) {
    first[i] = static_cast<uint16_t>(bits_of(whole[i]) >> 16);
    second[i] = static_cast<uint16_t>((bits_of(whole[i] - bf16_to_f32(first[i])) + 0x8000) >> 16);
  }
#endif
}

// Features 32 * step ... of a row, as number r of a tile's R. `next` is another row to prefetch, as in quantize_groups.
TS_INLINE void split_bf16(const float* x, uint8_t* q, int step, int r, int rows, const float* next) {
  uint16_t* to = (uint16_t*)q + (int64_t(step) * BF16_PARTS * rows + r) * BF16_STEP;
  for (int i = 0; i < BF16_STEP; i += LANES) {
    __builtin_prefetch(next + i);
    split_in_two(to + i, to + rows * BF16_STEP + i, load(x + i));
  }
}

template <int R>
inline void bf16x2_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  vf acc[R];
  begin(b.first, c, acc);
  for (int step = 0; step < b.steps; ++step) {
    fetch.step();
    const uint8_t* weights = b.data + int64_t(step) * BF16_STEP * LANES * 2;
    const uint16_t* x = (const uint16_t*)a.q + int64_t(step) * BF16_PARTS * R * BF16_STEP;
    for (int part = 0; part < BF16_PARTS; ++part, x += R * BF16_STEP) {
      vf even[R], odd[R];
      each<R>([&](auto r) TS_LAMBDA { even[r] = odd[r] = zero(); });
      for (int i = 0; i < BF16_STEP; i += 2) {
        const vf w0 = load_weights<BF16>(weights, i, false), w1 = load_weights<BF16>(weights, i, true);
        each<R>([&](auto r) TS_LAMBDA {
          even[r] = fma(set1(bf16_to_f32(x[r * BF16_STEP + i])), w0, even[r]);
          odd[r] = fma(set1(bf16_to_f32(x[r * BF16_STEP + i + 1])), w1, odd[r]);
        });
      }
      each<R>([&](auto r) TS_LAMBDA { acc[r] = add(acc[r], add(even[r], odd[r])); });
    }
  }
  keep(acc, c);
}
constexpr int BF16X2_ROWS = 4;

// ---- four-bit weights -------------------------------------------------------------------------------------------
// A group's 256 bytes are 8 runs of 32: run j holds input features 4j .. 4j+3; byte 4c + i holds feature 4j + i of
// column c in its low and of column c + 8 in its high nibble.

constexpr int64_t U4_VALUES = LANES * 32 / 2;
constexpr int64_t U4_WIDE = LANES * 32 + 2 * LANES * 4;  // a group after widening: bytes, then f32 scales and minima

// Four bytes of activations.
TS_INLINE int32_t word_at(const uint8_t* p) {
  int32_t word;
  memcpy(&word, p, 4);
  return word;
}

// The low nibbles of 32 bytes, then the high ones.
TS_INLINE void split_nibbles(const uint8_t* from, uint8_t* to) {
#if defined(TS_ISA_AVX512)
  const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)from));
  const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
  _mm512_storeu_si512(to, _mm512_and_si512(_mm512_srlv_epi16(both, shifts), _mm512_set1_epi8(15)));
#elif defined(TS_ISA_AVX2)
  const __m256i both = _mm256_loadu_si256((const __m256i*)from), low = _mm256_set1_epi8(15);
  _mm256_storeu_si256((__m256i*)to, _mm256_and_si256(both, low));
  _mm256_storeu_si256((__m256i*)(to + 32), _mm256_and_si256(_mm256_srli_epi16(both, 4), low));
#else
  for (int i = 0; i < 32; ++i) {
    to[i] = from[i] & 15;
    to[32 + i] = from[i] >> 4;
  }
#endif
}

// Widen groups of a panel once, to be used by many rows: nibbles to bytes (columns 0-7 then 8-15 in each run), scales and minima to
// f32.
inline void widen_u4(const Weight& weight, const uint8_t* panel, int groups, uint8_t* wide) {
  const Weight w = weight;  // a copy, since the bytes that are written might be the weight's
  const int64_t bytes = group_bytes(w);
  for (; groups > 0; --groups, panel += bytes, wide += U4_WIDE) {
    for (int j = 0; j < 8; ++j) split_nibbles(panel + 32 * j, wide + 64 * j);
    float* f = (float*)(wide + LANES * 32);
    const vf scale = load_scale(panel + U4_VALUES, w.f16_scale);
    store(f, scale);
    store(f + LANES, load_u4_min(w, panel + U4_VALUES, scale));
  }
}

#if defined(TS_ISA_AVX2)

TS_INLINE __m256i broadcast4(const uint8_t* p) { return _mm256_set1_epi32(word_at(p)); }

// WIDE: the panel went through widen_u4.
template <int R, bool WIDE>
inline void u4_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  const int64_t step = WIDE ? U4_WIDE : group_bytes(w);
  vf acc[R];
  begin(b.first, c, acc);
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
    vf scale, least;
    if (WIDE) {
      scale = load((const float*)(panel + LANES * 32));
      least = load((const float*)(panel + LANES * 32) + LANES);
    } else {
      scale = load_scale(panel + U4_VALUES, w.f16_scale);
      least = load_u4_min(w, panel + U4_VALUES, scale);
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

TS_INLINE __m512i broadcast4(const uint8_t* p) { return _mm512_set1_epi32(word_at(p)); }

// High nibbles are multiplied where they lie: the sums of columns 8-15 are 16 times as large until the group's end.
template <int R, bool WIDE>
inline void u4_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const __m512i nibbles = _mm512_inserti64x4(_mm512_set1_epi8(15), _mm256_set1_epi8(-16), 1);
  const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(4), 1);
  const int64_t step = WIDE ? U4_WIDE : group_bytes(w);
  vf acc[R];
  begin(b.first, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += step) {
    fetch.step();
    __m512i s[R];
    for (int r = 0; r < R; ++r) s[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m512i values = WIDE ? _mm512_loadu_si512(panel + 64 * j)
                                  : _mm512_and_si512(_mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)(panel + 32 * j))), nibbles);
      for (int r = 0; r < R; ++r) {
        s[r] = _mm512_dpbusd_epi32(s[r], values, broadcast4(a.q + ((8 * g + j) * R + r) * 4));
      }
    }
    const vf scale = WIDE ? load((const float*)(panel + LANES * 32)) : load_scale(panel + U4_VALUES, w.f16_scale);
    const vf least = WIDE ? load((const float*)(panel + LANES * 32) + LANES) : load_u4_min(w, panel + U4_VALUES, scale);
    for (int r = 0; r < R; ++r) {
      if (!WIDE) s[r] = _mm512_srav_epi32(s[r], shifts);
      acc[r] = add_group(acc[r], {_mm512_cvtepi32_ps(s[r])}, scale, a, g * R + r);
      acc[r] = add_min(acc[r], least, a, g * R + r);
    }
  }
  keep(acc, c);
}
constexpr int U4_ROWS = 8;

#elif defined(TS_ISA_NEON)

// Sums of eight columns: `add` multiplies 4 features of each, 32 bytes of weights, by a word of activations.
#if defined(__ARM_FEATURE_DOTPROD)
struct EightSums {
  int32x4_t s0 = vdupq_n_s32(0), s1 = vdupq_n_s32(0);
  TS_INLINE void add(int8x16_t w0, int8x16_t w1, int8x16_t x) {
    s0 = vdotq_s32(s0, w0, x);
    s1 = vdotq_s32(s1, w1, x);
  }
  TS_INLINE int32x4_t lower() const { return s0; }
  TS_INLINE int32x4_t upper() const { return s1; }
};
#else
struct EightSums {  // a group's: at most 8 * 15 * 127 in each, twice that in a pair, which fits int16
  int16x8_t s0 = vdupq_n_s16(0), s1 = s0, s2 = s0, s3 = s0;
  TS_INLINE void add(int8x16_t w0, int8x16_t w1, int8x16_t x) {
    s0 = vmlal_s8(s0, vget_low_s8(w0), vget_low_s8(x));
    s1 = vmlal_high_s8(s1, w0, x);
    s2 = vmlal_s8(s2, vget_low_s8(w1), vget_low_s8(x));
    s3 = vmlal_high_s8(s3, w1, x);
  }
  TS_INLINE int32x4_t lower() const { return vpaddlq_s16(vpaddq_s16(s0, s1)); }
  TS_INLINE int32x4_t upper() const { return vpaddlq_s16(vpaddq_s16(s2, s3)); }
};
#endif

// Columns 0-7, then 8-15: the sums of all would need more registers than there are.
template <int R, bool WIDE>
inline void u4_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t step = WIDE ? U4_WIDE : group_bytes(w);
  vf acc[R];
  begin(b.first, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += step) {
    fetch.step();
    vf total[R];
    each<2>([&](auto half) TS_LAMBDA {
      EightSums sums[R];
      each<8>([&](auto j) TS_LAMBDA {
        const uint8_t* p = panel + (WIDE ? 64 * j + 32 * half : 32 * j);
        auto values = [&](const uint8_t* from) TS_LAMBDA {
          const uint8x16_t both = vld1q_u8(from);
          return vreinterpretq_s8_u8(WIDE ? both : half == 0 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4));
        };
        const int8x16_t w0 = values(p), w1 = values(p + 16);
        each<R>([&](auto r) TS_LAMBDA {
          sums[r].add(w0, w1, vreinterpretq_s8_s32(vdupq_n_s32(word_at(a.q + ((8 * g + j) * R + r) * 4))));
        });
      });
      each<R>([&](auto r) TS_LAMBDA {
        total[r].v[2 * half] = vcvtq_f32_s32(sums[r].lower());
        total[r].v[2 * half + 1] = vcvtq_f32_s32(sums[r].upper());
      });
    });
    const vf scale = WIDE ? load((const float*)(panel + LANES * 32)) : load_scale(panel + U4_VALUES, w.f16_scale);
    const vf least = WIDE ? load((const float*)(panel + LANES * 32) + LANES) : load_u4_min(w, panel + U4_VALUES, scale);
    each<R>([&](auto r) TS_LAMBDA {
      acc[r] = add_group(acc[r], total[r], scale, a, g * R + r);
      acc[r] = add_min(acc[r], least, a, g * R + r);
    });
  }
  keep(acc, c);
}
constexpr int U4_ROWS = 6;

#else

template <int R, bool WIDE>
inline void u4_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t step = WIDE ? U4_WIDE : group_bytes(w);
  vf acc[R];
  begin(b.first, c, acc);
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
    const vf least = WIDE ? load((const float*)(panel + LANES * 32) + LANES) : load_u4_min(w, panel + U4_VALUES, scale);
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
  const int64_t values = int64_t(LANES) * w.group;
  vf acc[R];
  begin(b.first, c, acc);
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
      if (w.has_min) acc[r] = add_min(acc[r], load_scale(panel + values + scale_bytes(w), w.f16_scale), a, g * R + r);
    });
  }
  keep(acc, c);
}
constexpr int INT8_ROWS = 4;

#elif defined(TS_ISA_AVX512)

template <int R>
inline void int8_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  constexpr int SUMS = R == 1 ? 4 : R <= 6 ? 2 : 1;  // of a row: an addition to one waits for the one before
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t values = int64_t(LANES) * w.group;
  vf acc[R];
  begin(b.first, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += group_bytes(w)) {
    fetch.step();
    __m512i s[R * SUMS];
    each<R * SUMS>([&](auto r) TS_LAMBDA { s[r] = _mm512_setzero_si512(); });
    const uint8_t* x = a.q + int64_t(2) * w.group * g * R;
    for (int i = 0; i < w.group / 2; i += 8, x += 8 * R * 4)
      each<8>([&](auto j) TS_LAMBDA {
        const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)(panel + 32 * (i + j))));
        each<R>([&](auto r) TS_LAMBDA {
          __m512i& sum = s[r * SUMS + j % SUMS];
          sum = _mm512_dpwssd_epi32(sum, wide, broadcast4(x + (j * R + r) * 4));
          asm("" : "+v"(sum));  // pin the order, as in u4_tile
        });
      });
    const vf scale = load_scale(panel + values, w.f16_scale);
    each<R>([&](auto r) TS_LAMBDA {
      each<SUMS - 1>([&](auto i) TS_LAMBDA { s[r * SUMS] = _mm512_add_epi32(s[r * SUMS], s[r * SUMS + i + 1]); });
      acc[r] = add_group(acc[r], {_mm512_cvtepi32_ps(s[r * SUMS])}, scale, a, g * R + r);
      if (w.has_min) acc[r] = add_min(acc[r], load_scale(panel + values + scale_bytes(w), w.f16_scale), a, g * R + r);
    });
  }
  keep(acc, c);
}
constexpr int INT8_ROWS = 12;

#elif defined(TS_ISA_NEON)

template <int R>
inline void int8_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t values = int64_t(LANES) * w.group;
  vf acc[R];
  begin(b.first, c, acc);
  for (int g = 0; g < b.steps; ++g, panel += group_bytes(w)) {
    fetch.step();
    int32x4_t s[R][4];
    each<R>([&](auto r) TS_LAMBDA { each<4>([&](auto i) TS_LAMBDA { s[r][i] = vdupq_n_s32(0); }); });
    const uint8_t* x = a.q + int64_t(2) * w.group * g * R;
    for (int j = 0; j < w.group / 2; ++j, x += R * 4) {
      const int8x16x2_t pairs = vld2q_s8((const int8_t*)panel + 32 * j);  // the even features, the odd ones
      each<2>([&](auto odd) TS_LAMBDA {
        const int16x8_t w0 = vmovl_s8(vget_low_s8(pairs.val[odd])), w1 = vmovl_high_s8(pairs.val[odd]);
        each<R>([&](auto r) TS_LAMBDA {
          const int16x4_t pair = vreinterpret_s16_s32(vdup_n_s32(word_at(x + r * 4)));
          s[r][0] = vmlal_lane_s16(s[r][0], vget_low_s16(w0), pair, odd);
          s[r][1] = vmlal_high_lane_s16(s[r][1], w0, pair, odd);
          s[r][2] = vmlal_lane_s16(s[r][2], vget_low_s16(w1), pair, odd);
          s[r][3] = vmlal_high_lane_s16(s[r][3], w1, pair, odd);
        });
      });
    }
    const vf scale = load_scale(panel + values, w.f16_scale);
    each<R>([&](auto r) TS_LAMBDA {
      vf sum;
      each<4>([&](auto i) TS_LAMBDA { sum.v[i] = vcvtq_f32_s32(s[r][i]); });
      acc[r] = add_group(acc[r], sum, scale, a, g * R + r);
      if (w.has_min) acc[r] = add_min(acc[r], load_scale(panel + values + scale_bytes(w), w.f16_scale), a, g * R + r);
    });
  }
  keep(acc, c);
}
constexpr int INT8_ROWS = 4;

#else

template <int R>
inline void int8_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  const Weight& w = b.w;
  const uint8_t* panel = b.data;
  const int64_t values = int64_t(LANES) * w.group;
  vf acc[R];
  begin(b.first, c, acc);
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
      if (w.has_min) acc[r] = add_min(acc[r], load_scale(panel + values + scale_bytes(w), w.f16_scale), a, g * R + r);
    }
  }
  keep(acc, c);
}
constexpr int INT8_ROWS = 4;

#endif

}  // namespace
