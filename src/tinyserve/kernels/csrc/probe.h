// Ceilings of the machine, for benchmarks: how fast this instruction set reads memory and multiplies.
#pragma once
#include "simd.h"

namespace {

enum Probe : int { READ = 0, FMA = 1, INT16 = 2, U4S8 = 3 };
constexpr int64_t PROBE_ROUNDS = 1 << 20;
#if defined(TS_ISA_AVX2)
constexpr int FMA_CHAINS = 6;  // of two registers each: with both operands, what sixteen registers hold
#else
constexpr int FMA_CHAINS = 8;
#endif

// Sums `bytes` bytes (READ), or runs PROBE_ROUNDS rounds of independent multiply-add chains in registers. Returns the
// multiply-adds done (0 for READ); `sink` keeps the compiler honest.
int64_t probe(int kind, const uint8_t* data, int64_t bytes, float* sink) {
#if defined(TS_ISA_AVX2)
  if (kind == INT16 || kind == U4S8) {
    __m256i acc[8], x = _mm256_set1_epi16(3), y = _mm256_set1_epi16(5);
    for (auto& a : acc) a = _mm256_setzero_si256();
    for (int64_t i = 0; i < PROBE_ROUNDS; ++i)
      for (auto& a : acc) {
        a = kind == INT16 ? _mm256_add_epi32(a, _mm256_madd_epi16(x, y)) : _mm256_add_epi16(a, _mm256_maddubs_epi16(x, y));
        asm("" : "+x"(a), "+x"(x), "+x"(y));
      }
    for (auto& a : acc) x = _mm256_xor_si256(x, a);
    *sink += static_cast<float>(_mm256_extract_epi32(x, 0));
    return PROBE_ROUNDS * 8 * (kind == INT16 ? 16 : 32);
  }
#endif
  vf acc[8];
  for (auto& a : acc) a = zero();
  if (kind == READ) {
    const float* p = (const float*)data;
    for (int64_t i = 0; i + 128 <= bytes / 4; i += 128)
      for (int j = 0; j < 8; ++j) acc[j] = add(acc[j], load(p + i + 16 * j));
  } else {
    float values[2] = {1.0f, 1.0e-9f};
    asm("" : "+m"(values));
    const vf x = set1(values[0]), y = set1(values[1]);
    for (int64_t i = 0; i < PROBE_ROUNDS; ++i)
      for (int j = 0; j < FMA_CHAINS; ++j) acc[j] = fma(acc[j], x, y);
  }
  for (auto& a : acc) *sink += sum_lanes(a);
  return kind == READ ? 0 : PROBE_ROUNDS * FMA_CHAINS * LANES;
}

}  // namespace
