// Sixteen f32 lanes, the unit of every kernel: a register of AVX-512, two of AVX2, four of NEON, or a plain array.
// All variants give the same bits wherever the machine has a fused multiply-add.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(TS_ISA_NEON_DOT)
#define TS_ISA_NEON 1
#endif
#if defined(TS_ISA_AVX2) || defined(TS_ISA_AVX512)
#include <immintrin.h>
#elif defined(TS_ISA_NEON)
#include <arm_neon.h>
#endif

#define TS_INLINE inline __attribute__((always_inline))
#define TS_LAMBDA __attribute__((always_inline))

namespace {

// A compiler barrier: what was read before is loaded again after it, rather than kept in registers that the sums need.
TS_INLINE void forget() { asm volatile("" ::: "memory"); }

// f(0), ..., f(N - 1). Where registers are many numbers wide the indices are constants: arrays of registers then stay in
// registers, which loops do not promise.
#if defined(TS_ISA_AVX2) || defined(TS_ISA_AVX512) || defined(TS_ISA_NEON)
template <class F, int... I>
TS_INLINE void each_of(std::integer_sequence<int, I...>, F&& f) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F>
TS_INLINE void each(F&& f) {
  each_of(std::make_integer_sequence<int, N>{}, f);
}
#else
template <int N, class F>
TS_INLINE void each(F&& f) {
  for (int i = 0; i < N; ++i) f(i);
}
#endif

constexpr int LANES = 16;

// ---- f16 and bf16, one at a time (IEEE 754 binary16; round to nearest even; stores saturate) -------------------

TS_INLINE uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
TS_INLINE float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7FFF;
  if (magnitude >= 0x7C00) return float_of(sign | 0x7F800000 | ((magnitude & 0x3FF) << 13));
  if (magnitude >= 0x0400) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  const float small = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24, exact
  return float_of(sign | bits_of(small));
}

inline uint16_t f32_to_f16(float x) {
  const uint32_t u = bits_of(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  const uint32_t magnitude = u & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;             // NaN
  if (magnitude >= 0x477FF000) return sign | 0x7BFF;            // beyond the largest f16: saturate
  if (magnitude < 0x38800000) {                                 // subnormal: let f32 addition round
    const float shifted = float_of(magnitude) + 0.5f;           // ulp of 0.5f is 2^-24
    return sign | static_cast<uint16_t>(bits_of(shifted) - bits_of(0.5f));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

TS_INLINE float bf16_to_f32(uint16_t h) { return float_of(uint32_t(h) << 16); }
inline uint16_t f32_to_bf16(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

#if defined(TS_ISA_AVX512)

struct vf {
  __m512 v;
};
TS_INLINE void pin(vf& x) { asm volatile("" : "+v"(x.v)); }
TS_INLINE vf zero() { return {_mm512_setzero_ps()}; }
TS_INLINE vf set1(float x) { return {_mm512_set1_ps(x)}; }
TS_INLINE vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
TS_INLINE void store(float* p, vf a) { _mm512_storeu_ps(p, a.v); }
TS_INLINE vf fma(vf a, vf b, vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TS_INLINE vf add(vf a, vf b) { return {_mm512_add_ps(a.v, b.v)}; }
TS_INLINE vf sub(vf a, vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
TS_INLINE vf mul(vf a, vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
TS_INLINE vf div(vf a, vf b) { return {_mm512_div_ps(a.v, b.v)}; }
TS_INLINE vf max(vf a, vf b) { return {_mm512_max_ps(a.v, b.v)}; }
TS_INLINE vf min(vf a, vf b) { return {_mm512_min_ps(a.v, b.v)}; }
TS_INLINE vf abs(vf a) { return {_mm512_abs_ps(a.v)}; }
TS_INLINE vf round(vf a) { return {_mm512_roundscale_ps(a.v, 0x08)}; }
TS_INLINE vf load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
TS_INLINE vf load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
TS_INLINE vf load_bf16_of_pairs(const uint32_t* p, bool upper) {
  const __m512i pairs = _mm512_loadu_si512(p);
  return {_mm512_castsi512_ps(upper ? _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)) : _mm512_slli_epi32(pairs, 16))};
}
TS_INLINE vf load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
TS_INLINE vf exp2_int(vf a) {  // 2^a for integral a in -126..127
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127)), 23))};
}
TS_INLINE vf keep_where_ge(vf x, vf bound, vf a) {  // x >= bound ? a : 0
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, bound.v, _CMP_GE_OQ), a.v)};
}
TS_INLINE vf lanes_from_to(vf a, int from, int to, float other) {  // lanes from..to-1 of a, `other` elsewhere
  const __mmask16 m = static_cast<__mmask16>(((1u << to) - 1u) & ~((1u << from) - 1u));
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), m, a.v)};
}

#elif defined(TS_ISA_AVX2)

struct vf {
  __m256 a, b;
};
TS_INLINE void pin(vf& x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }
TS_INLINE vf zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TS_INLINE vf set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TS_INLINE vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TS_INLINE void store(float* p, vf x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
TS_INLINE vf fma(vf x, vf y, vf z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
TS_INLINE vf add(vf x, vf y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
TS_INLINE vf sub(vf x, vf y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
TS_INLINE vf mul(vf x, vf y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
TS_INLINE vf div(vf x, vf y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
TS_INLINE vf max(vf x, vf y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
TS_INLINE vf min(vf x, vf y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
TS_INLINE vf abs(vf x) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
TS_INLINE vf round(vf x) { return {_mm256_round_ps(x.a, 0x08), _mm256_round_ps(x.b, 0x08)}; }
TS_INLINE vf load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
TS_INLINE vf load_bf16(const uint16_t* p) {
  auto half = [](const uint16_t* q) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)q)), 16));
  };
  return {half(p), half(p + 8)};
}
TS_INLINE vf load_bf16_of_pairs(const uint32_t* p, bool upper) {
  auto half = [&](const uint32_t* q) TS_LAMBDA {
    const __m256i pairs = _mm256_loadu_si256((const __m256i*)q);
    return _mm256_castsi256_ps(upper ? _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)) : _mm256_slli_epi32(pairs, 16));
  };
  return {half(p), half(p + 8)};
}
TS_INLINE vf load_i8(const int8_t* p) {
  auto half = [](const int8_t* q) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)q))); };
  return {half(p), half(p + 8)};
}
TS_INLINE vf exp2_int(vf x) {
  auto half = [](__m256 a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127)), 23));
  };
  return {half(x.a), half(x.b)};
}
TS_INLINE vf keep_where_ge(vf x, vf bound, vf y) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, bound.a, _CMP_GE_OQ), y.a), _mm256_and_ps(_mm256_cmp_ps(x.b, bound.b, _CMP_GE_OQ), y.b)};
}
TS_INLINE vf lanes_from_to(vf x, int from, int to, float other) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  auto half = [&](__m256 a, int shift) {
    const __m256i lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(from - shift), index);
    const __m256i hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(to - shift), index);
    return _mm256_blendv_ps(_mm256_set1_ps(other), a, _mm256_castsi256_ps(_mm256_andnot_si256(lo, hi)));
  };
  return {half(x.a, 0), half(x.b, 8)};
}

#elif defined(TS_ISA_NEON)

struct vf {
  float32x4_t v[4];
};
TS_INLINE void pin(vf&) {}
#define TS_EACH(expression)                     \
  vf r;                                         \
  for (int i = 0; i < 4; ++i) r.v[i] = expression; \
  return r;
TS_INLINE vf set1(float x) { TS_EACH(vdupq_n_f32(x)) }
TS_INLINE vf zero() { return set1(0.0f); }
TS_INLINE vf load(const float* p) { TS_EACH(vld1q_f32(p + 4 * i)) }
TS_INLINE void store(float* p, vf a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
TS_INLINE vf fma(vf a, vf b, vf c) { TS_EACH(vfmaq_f32(c.v[i], a.v[i], b.v[i])) }
TS_INLINE vf add(vf a, vf b) { TS_EACH(vaddq_f32(a.v[i], b.v[i])) }
TS_INLINE vf sub(vf a, vf b) { TS_EACH(vsubq_f32(a.v[i], b.v[i])) }
TS_INLINE vf mul(vf a, vf b) { TS_EACH(vmulq_f32(a.v[i], b.v[i])) }
TS_INLINE vf div(vf a, vf b) { TS_EACH(vdivq_f32(a.v[i], b.v[i])) }
// x86's rule for max and min, so that NaN behaves alike: the second operand unless the comparison holds.
TS_INLINE vf max(vf a, vf b) { TS_EACH(vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])) }
TS_INLINE vf min(vf a, vf b) { TS_EACH(vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])) }
TS_INLINE vf abs(vf a) { TS_EACH(vabsq_f32(a.v[i])) }
TS_INLINE vf round(vf a) { TS_EACH(vrndnq_f32(a.v[i])) }
TS_INLINE vf load_f16(const uint16_t* p) { TS_EACH(vcvt_f32_f16(vld1_f16((const __fp16*)(p + 4 * i)))) }
TS_INLINE vf load_bf16(const uint16_t* p) { TS_EACH(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16))) }
TS_INLINE vf load_bf16_of_pairs(const uint32_t* p, bool upper) {
  TS_EACH(vreinterpretq_f32_u32(upper ? vandq_u32(vld1q_u32(p + 4 * i), vdupq_n_u32(0xFFFF0000)) : vshlq_n_u32(vld1q_u32(p + 4 * i), 16)))
}
TS_INLINE vf load_i8(const int8_t* p) {
  TS_EACH(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(*(const int32_t*)(p + 4 * i))))))))
}
TS_INLINE vf exp2_int(vf a) { TS_EACH(vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(a.v[i]), vdupq_n_s32(127)), 23))) }
TS_INLINE vf keep_where_ge(vf x, vf bound, vf a) {
  TS_EACH(vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x.v[i], bound.v[i]), vreinterpretq_u32_f32(a.v[i]))))
}
TS_INLINE vf lanes_from_to(vf a, int from, int to, float other) {
  float x[LANES];
  store(x, a);
  for (int i = 0; i < LANES; ++i)
    if (i < from || i >= to) x[i] = other;
  return load(x);
}
#undef TS_EACH

#else  // portable: the compiler's own vectors do what they can

struct vf {
  float v[LANES];
};
TS_INLINE void pin(vf&) {}
#define TS_EACH(expression)                             \
  vf r;                                                 \
  for (int i = 0; i < LANES; ++i) r.v[i] = expression;  \
  return r;
TS_INLINE vf set1(float x) { TS_EACH(x) }
TS_INLINE vf zero() { return set1(0.0f); }
TS_INLINE vf load(const float* p) { TS_EACH(p[i]) }
TS_INLINE void store(float* p, vf a) {
  for (int i = 0; i < LANES; ++i) p[i] = a.v[i];
}
#if defined(__FMA__) || defined(__aarch64__)
TS_INLINE vf fma(vf a, vf b, vf c) { TS_EACH(__builtin_fmaf(a.v[i], b.v[i], c.v[i])) }
#else
TS_INLINE vf fma(vf a, vf b, vf c) { TS_EACH(a.v[i] * b.v[i] + c.v[i]) }  // no FMA on this machine: other bits
#endif
TS_INLINE vf add(vf a, vf b) { TS_EACH(a.v[i] + b.v[i]) }
TS_INLINE vf sub(vf a, vf b) { TS_EACH(a.v[i] - b.v[i]) }
TS_INLINE vf mul(vf a, vf b) { TS_EACH(a.v[i] * b.v[i]) }
TS_INLINE vf div(vf a, vf b) { TS_EACH(a.v[i] / b.v[i]) }
TS_INLINE vf max(vf a, vf b) { TS_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }
TS_INLINE vf min(vf a, vf b) { TS_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]) }
TS_INLINE vf abs(vf a) { TS_EACH(std::fabs(a.v[i])) }
TS_INLINE vf round(vf a) { TS_EACH(nearbyintf(a.v[i])) }
TS_INLINE vf load_f16(const uint16_t* p) { TS_EACH(f16_to_f32(p[i])) }
TS_INLINE vf load_bf16(const uint16_t* p) { TS_EACH(bf16_to_f32(p[i])) }
TS_INLINE vf load_bf16_of_pairs(const uint32_t* p, bool upper) { TS_EACH(float_of(upper ? p[i] & 0xFFFF0000 : p[i] << 16)) }
TS_INLINE vf load_i8(const int8_t* p) { TS_EACH(static_cast<float>(p[i])) }
TS_INLINE vf exp2_int(vf a) { TS_EACH(float_of(uint32_t(static_cast<int32_t>(a.v[i]) + 127) << 23)) }
TS_INLINE vf keep_where_ge(vf x, vf bound, vf a) { TS_EACH(x.v[i] >= bound.v[i] ? a.v[i] : 0.0f) }
TS_INLINE vf lanes_from_to(vf a, int from, int to, float other) { TS_EACH(i >= from && i < to ? a.v[i] : other) }
#undef TS_EACH

#endif

// Sixteen values as f32_to_f16 makes them.
#if defined(TS_ISA_AVX2) || defined(TS_ISA_AVX512)
TS_INLINE __m128i saturated_f16(__m256 x) {
  const __m256 most = _mm256_set1_ps(65504.0f), sign = _mm256_set1_ps(-0.0f);
  const __m256 bounded = _mm256_min_ps(most, _mm256_max_ps(_mm256_xor_ps(most, sign), x));  // a NaN stays
  const __m256 nan = _mm256_or_ps(_mm256_and_ps(x, sign), _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)));
  return _mm256_cvtps_ph(_mm256_blendv_ps(bounded, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)), _MM_FROUND_TO_NEAREST_INT);
}
TS_INLINE void store_f16(uint16_t* p, const float* x) {
  _mm_storeu_si128((__m128i*)p, saturated_f16(_mm256_loadu_ps(x)));
  _mm_storeu_si128((__m128i*)(p + 8), saturated_f16(_mm256_loadu_ps(x + 8)));
}
#else
TS_INLINE void store_f16(uint16_t* p, const float* x) {
  for (int i = 0; i < LANES; ++i) p[i] = f32_to_f16(x[i]);
}
#endif

// ---- the same for every variant ---------------------------------------------------------------------------------

// Horizontal reductions in one fixed tree: 16 -> 8 -> 4 -> 2 -> 1.
#if defined(TS_ISA_AVX2) || defined(TS_ISA_AVX512)
TS_INLINE __m256 lower(vf x) {
#if defined(TS_ISA_AVX2)
  return x.a;
#else
  return _mm512_castps512_ps256(x.v);
#endif
}
TS_INLINE __m256 upper(vf x) {
#if defined(TS_ISA_AVX2)
  return x.b;
#else
  return _mm512_extractf32x8_ps(x.v, 1);
#endif
}
TS_INLINE float sum_lanes(vf x) {
  const __m256 eight = _mm256_add_ps(lower(x), upper(x));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TS_INLINE float max_lanes(vf x) {  // no lane is NaN
  const __m256 eight = _mm256_max_ps(lower(x), upper(x));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
TS_INLINE float sum_lanes(vf a) {
  float x[LANES];
  store(x, a);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x[i] = x[i] + x[i + width];
  return x[0];
}
TS_INLINE float max_lanes(vf a) {  // no lane is NaN
  float x[LANES];
  store(x, a);
  float best = x[0];
  for (int i = 1; i < LANES; ++i) best = x[i] > best ? x[i] : best;
  return best;
}
#endif

// e^x, about 1 ulp; exactly 1 at 0 and exactly 0 below -87. Cody-Waite reduction, then the degree-5 minimax
// polynomial of Cephes' expf.
TS_INLINE vf exp(vf x) {
  const vf low = set1(-87.0f);
  const vf clamped = min(max(x, low), set1(88.0f));
  const vf n = round(mul(clamped, set1(1.44269504088896341f)));
  vf r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  vf p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  const vf e = add(fma(mul(r, r), p, r), set1(1.0f));
  return keep_where_ge(x, low, mul(e, exp2_int(n)));
}

TS_INLINE vf silu(vf x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

}  // namespace
