// Ceilings of the machine, for benchmarks: how fast this instruction set reads memory and multiplies.
#pragma once
#include "amx.h"
#include "simd.h"

namespace {

enum Probe : int { READ = 0, FMA = 1, INT16 = 2, U4S8 = 3, BF16X2_PRODUCTS = 4 };
constexpr int64_t PROBE_ROUNDS = 1 << 20;
#if defined(TS_ISA_AVX2)
constexpr int FMA_CHAINS = 6;  // of two registers each: with both operands, what sixteen registers hold
#else
constexpr int FMA_CHAINS = 8;
#endif

// Rounds of independent chains in registers, and the multiply-adds of one round.
#if defined(TS_ISA_AVX2)
template <int KIND>
TS_INLINE int integer_chains(float* sink) {
  constexpr int CHAINS = 8;
  __m256i acc[CHAINS], x = _mm256_set1_epi16(3), y = _mm256_set1_epi16(5);
  each<CHAINS>([&](auto i) TS_LAMBDA { acc[i] = _mm256_setzero_si256(); });
  for (int64_t round = 0; round < PROBE_ROUNDS; ++round)
    each<CHAINS>([&](auto i) TS_LAMBDA {
      if constexpr (KIND == INT16) acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(x, y));
      else acc[i] = _mm256_add_epi16(acc[i], _mm256_maddubs_epi16(x, y));
      asm volatile("" : "+x"(acc[i]), "+x"(x), "+x"(y));  // equal products are not one
    });
  each<CHAINS>([&](auto i) TS_LAMBDA { x = _mm256_xor_si256(x, acc[i]); });
  *sink += static_cast<float>(_mm256_extract_epi32(x, 0));
  return CHAINS * (KIND == INT16 ? 16 : 32);
}
#elif defined(TS_ISA_AVX512)
template <int KIND>
TS_INLINE int integer_chains(float* sink) {
  constexpr int CHAINS = 12;
  __m512i acc[CHAINS], x = _mm512_set1_epi16(3), y = _mm512_set1_epi16(5);
  each<CHAINS>([&](auto i) TS_LAMBDA { acc[i] = _mm512_setzero_si512(); });
  for (int64_t round = 0; round < PROBE_ROUNDS; ++round)
    each<CHAINS>([&](auto i) TS_LAMBDA {
      acc[i] = KIND == INT16 ? _mm512_dpwssd_epi32(acc[i], x, y) : _mm512_dpbusd_epi32(acc[i], x, y);
      asm volatile("" : "+v"(acc[i]), "+v"(x), "+v"(y));  // equal products are not one
    });
  each<CHAINS>([&](auto i) TS_LAMBDA { x = _mm512_xor_si512(x, acc[i]); });
  *sink += static_cast<float>(_mm512_cvtsi512_si32(x));
  return CHAINS * (KIND == INT16 ? 32 : 64);
}
#endif
#if TS_HAVE_AMX
constexpr int64_t AMX_ROUNDS = PROBE_ROUNDS / 8;
// The matrix unit over groups of 32 features; an int16 takes two products.
TS_INLINE int64_t amx_chains(int kind) {
  const AmxShapes shapes(Weight{nullptr, U4, LANES, 32, 32, 1, 1});
  alignas(64) const uint8_t zeros[AMX_ROWS * 32] = {};
  _tile_loadd(4, zeros, 32);
  _tile_loadd(6, zeros, 64);
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t round = 0; round < AMX_ROUNDS; ++round) {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 6);
  }
  return AMX_ROUNDS * 2 * AMX_ROWS * LANES * 32 / (kind == INT16 ? 2 : 1);
}
// Four sums at once, since each instruction waits for the one before it on the same registers.
TS_INLINE int64_t amx_bf16_chains() {
  const AmxShapes shapes(Weight{nullptr, BF16X2, LANES, BF16_STEP, BF16_STEP, 0, 0});
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(6);
  for (int64_t round = 0; round < AMX_ROUNDS / 2; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 6);
  }
  return AMX_ROUNDS / 2 * 4 * AMX_ROWS * LANES * BF16_STEP / BF16_PARTS;
}
#endif
TS_INLINE int float_chains(float* sink) {
  float values[2] = {1.0f, 1.0e-9f};
  asm("" : "+m"(values));
  const vf x = set1(values[0]), y = set1(values[1]);
  vf acc[FMA_CHAINS];
  each<FMA_CHAINS>([&](auto i) TS_LAMBDA { acc[i] = zero(); });
  for (int64_t round = 0; round < PROBE_ROUNDS; ++round)
    each<FMA_CHAINS>([&](auto i) TS_LAMBDA {
      acc[i] = fma(acc[i], x, y);
      pin(acc[i]);  // equal chains are not one
    });
  each<FMA_CHAINS>([&](auto i) TS_LAMBDA { *sink += sum_lanes(acc[i]); });
  return FMA_CHAINS * LANES;
}

// Sums `bytes` bytes (READ), or runs PROBE_ROUNDS rounds of independent multiply-add chains in registers. Returns the
// multiply-adds done (0 for READ); `sink` keeps the compiler honest.
int64_t probe(int kind, [[maybe_unused]] bool amx, const uint8_t* data, int64_t bytes, float* sink) {
  if (kind == READ) {
    vf acc[8];
    each<8>([&](auto i) TS_LAMBDA { acc[i] = zero(); });
    const float* p = (const float*)data;
    for (int64_t at = 0; at + 8 * LANES <= bytes / 4; at += 8 * LANES)
      each<8>([&](auto i) TS_LAMBDA { acc[i] = add(acc[i], load(p + at + LANES * i)); });
    each<8>([&](auto i) TS_LAMBDA { *sink += sum_lanes(acc[i]); });
    return 0;
  }
#if TS_HAVE_AMX
  if (amx && (kind == INT16 || kind == U4S8)) return amx_chains(kind);
  if (amx && kind == BF16X2_PRODUCTS) return amx_bf16_chains();
#endif
#if defined(TS_ISA_AVX2) || defined(TS_ISA_AVX512)
  if (kind == INT16) return PROBE_ROUNDS * integer_chains<INT16>(sink);
  if (kind == U4S8) return PROBE_ROUNDS * integer_chains<U4S8>(sink);
#endif
  return PROBE_ROUNDS * float_chains(sink) / (kind == BF16X2_PRODUCTS ? BF16_PARTS : 1);
}

}  // namespace
