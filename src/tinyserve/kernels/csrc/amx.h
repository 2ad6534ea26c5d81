// The matrix unit of newer x86 servers (AMX). One instruction adds, for 16 rows of activations and 16 columns of weights, the
// products of 32 or 64 features, in integers or in bf16. Sums of integers leave the unit through memory, a group at a
// time, and are scaled as everywhere else: the same bits. int16 activations go in as high and low bytes.
#pragma once
#include "gemm.h"
#include "tasks.h"

namespace {

#if TS_HAVE_AMX

constexpr int AMX_ROWS = 16;
constexpr int AMX_LEAST = 8;  // rows of a tile: 17 are 9 + 8

// Few rows are faster without it.
TS_INLINE bool suits_amx(const Weight& w, int rows) {
  if (w.format == BF16X3) return true;
  if (w.format == U4) return rows >= 32;
  return w.format == INT8 && rows >= 2 * AMX_LEAST && w.group % 32 == 0;
}
TS_INLINE int amx_depth(const Weight& w) { return w.group % 64 == 0 ? 64 : 32; }  // features of an instruction

// The shapes of the unit's registers: up to 3 they hold sums, 4 and 5 activations, 6 and 7 weights. Held by a thread for a task.
class AmxShapes {
 public:
  explicit AmxShapes(const Weight& w) {
    struct {
      uint8_t palette = 1, unused[15] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    const int depth = w.format == BF16X3 ? BF16_STEP * 2 : amx_depth(w);  // bytes of a row of activations
    for (int i : {0, 1, 2, 3}) shapes.rows[i] = AMX_ROWS, shapes.row_bytes[i] = LANES * 4;
    for (int i : {4, 5}) shapes.rows[i] = AMX_ROWS, shapes.row_bytes[i] = depth;
    for (int i : {6, 7}) shapes.rows[i] = depth / 4, shapes.row_bytes[i] = LANES * 4;
    asm volatile("" ::"m"(shapes));  // gcc 12 believes that the next line reads eight bytes of it
    _tile_loadconfig(&shapes);
  }
  ~AmxShapes() { _tile_release(); }
  AmxShapes(const AmxShapes&) = delete;
  AmxShapes& operator=(const AmxShapes&) = delete;
};

// A panel as the unit reads it: per group, rows of 64 bytes that hold four features of each column, then f32 scales and minima.
// Four-bit panels are widened to just that.
TS_INLINE int64_t amx_group_bytes(const Weight& w) { return LANES * (w.group + 8); }

inline void widen_for_amx(const Weight& w, const uint8_t* panel, uint8_t* wide) {
  if (w.format == U4) return widen_u4(w, panel, wide);
  alignas(64) uint16_t pairs[2 * LANES];  // a row is two runs of the panel, in turns
  for (int i = 0; i < LANES; ++i) pairs[2 * i] = i, pairs[2 * i + 1] = LANES + i;
  const __m512i order = _mm512_load_si512(pairs);
  const int64_t values = int64_t(LANES) * w.group;
  for (int g = 0; g < w.k / w.group; ++g, panel += group_bytes(w), wide += amx_group_bytes(w)) {
    for (int64_t i = 0; i < values; i += 64) _mm512_storeu_si512(wide + i, _mm512_permutexvar_epi16(order, _mm512_loadu_si512(panel + i)));
    float* f = (float*)(wide + values);
    store(f, load_scale(panel + values, w.f16_scale));
    if (w.has_min) store(f + LANES, load_scale(panel + values + scale_bytes(w), w.f16_scale));
  }
}

// Sixteen values of a row, of which the unit reads one run of bytes after another; the low bytes of int16 lie `plane` further on.
template <class T>
TS_INLINE void store_for_amx(uint8_t* q, int64_t plane, vf x) {
  const __m512i whole = _mm512_cvtps_epi32(x.v);
  if constexpr (sizeof(T) == 1) {
    _mm_storeu_si128((__m128i*)q, _mm512_cvtepi32_epi8(whole));
  } else {
    _mm_storeu_si128((__m128i*)q, _mm512_cvtepi32_epi8(_mm512_srai_epi32(whole, 8)));
    _mm_storeu_si128((__m128i*)(q + plane), _mm512_cvtepi32_epi8(whole));
  }
}

// `b` holds a widened panel. The unit computes 16 rows whatever R is: those beyond are garbage and never read.
template <class T, int R>
inline void amx_tile(const Block& b, Fetch fetch, const Acts& a, float* c) {
  // Copies: the unit's instructions hide what they write, and all that is in memory would be read again after each.
  const int group = b.w.group, depth = amx_depth(b.w), steps = b.steps;
  const bool has_min = b.w.format == U4 || b.w.has_min;
  const uint8_t *panel = b.data, *x = a.q;
  const int64_t group_bytes = amx_group_bytes(b.w);
  const Acts acts = a;
  alignas(64) int32_t sums[2][sizeof(T)][AMX_ROWS * LANES];  // of a group for all rows: of int16 activations, of their high and low bytes
  vf acc[R];
  begin(b, c, acc);
  auto multiply = [&](int g) TS_LAMBDA {
    fetch.step();
    const uint8_t *weights = panel + g * group_bytes, *high = x + int64_t(g) * group * R * sizeof(T), *low = high + R * group;
    _tile_zero(0);
    if (sizeof(T) == 2) _tile_zero(1);
    for (int i = 0; i < group; i += depth) {
      _tile_loadd(4, high + i, group);
      _tile_loadd(6, weights + i * LANES, 64);
      if constexpr (sizeof(T) == 1) {
        _tile_dpbsud(0, 4, 6);
      } else {
        _tile_loadd(5, low + i, group);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbusd(1, 5, 6);
      }
    }
    _tile_stored(0, sums[g % 2][0], LANES * 4);
    if (sizeof(T) == 2) _tile_stored(1, sums[g % 2][sizeof(T) - 1], LANES * 4);
  };
  auto scale_sums = [&](int g) TS_LAMBDA {
    const float* scales = (const float*)(panel + (g + 1) * group_bytes) - 2 * LANES;
    const vf scale = load(scales), least = load(scales + LANES);
    each<R>([&](auto r) TS_LAMBDA {
      __m512i sum = _mm512_load_si512(sums[g % 2][0] + r * LANES);
      if (sizeof(T) == 2) sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), _mm512_load_si512(sums[g % 2][sizeof(T) - 1] + r * LANES));
      acc[r] = add_group(acc[r], {_mm512_cvtepi32_ps(sum)}, scale, acts, g * R + r);
      if (has_min) acc[r] = add_min(acc[r], least, acts, g * R + r);
      pin(acc[r]);
    });
  };
  forget();  // what was written is what the unit reads
  int g = 0;
  for (; g + 2 <= steps; g += 2) {  // two at a time, since sums take long to come back
    multiply(g), multiply(g + 1);
    scale_sums(g), scale_sums(g + 1);
  }
  if (g < steps) multiply(g), scale_sums(g);
  keep(acc, c);
}

// ---- bf16 weights (BF16X3): the unit reads panels as they are ------------------------------------------------------

// A tile of activations, and where its sums go: those of 16 rows, whatever `rows` is.
struct AmxRows {
  const uint8_t* q;
  int rows;
  float* c;  // [panel][MAX_BLOCK_ROWS][16]
};

// One or two tiles of activations times one or two panels: what is loaded is used twice.
template <bool TWO_TILES, bool TWO_PANELS>
inline void amx_bf16_tiles(const uint8_t* panel, int64_t panel_bytes, int steps, Fetch& fetch, const AmxRows& a, const AmxRows& b) {
  const uint8_t *x = a.q, *y = b.q, *other = panel + panel_bytes;
  const int64_t x_part = int64_t(a.rows) * BF16_STEP * 2, y_part = int64_t(b.rows) * BF16_STEP * 2;
  float *c = a.c, *d = b.c;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int step = 0; step < steps; ++step) {
    fetch.step();
    _tile_loadd(6, panel + int64_t(step) * BF16_STEP * LANES * 2, 64);
    if (TWO_PANELS) _tile_loadd(7, other + int64_t(step) * BF16_STEP * LANES * 2, 64);
#pragma GCC unroll 3
    for (int part = 0; part < BF16_PARTS; ++part) {
      _tile_loadd(4, x, 64);
      x += x_part;
      _tile_dpbf16ps(0, 4, 6);
      if (TWO_PANELS) _tile_dpbf16ps(1, 4, 7);
      if (!TWO_TILES) continue;
      _tile_loadd(5, y, 64);
      y += y_part;
      _tile_dpbf16ps(2, 5, 6);
      if (TWO_PANELS) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, LANES * 4);
  if (TWO_PANELS) _tile_stored(1, c + MAX_BLOCK_ROWS * LANES, LANES * 4);
  if (!TWO_TILES) return;
  _tile_stored(2, d, LANES * 4);
  if (TWO_PANELS) _tile_stored(3, d + MAX_BLOCK_ROWS * LANES, LANES * 4);
}

// c[panel][MAX_BLOCK_ROWS][16] = activations x one or two panels; `next` are those to prefetch, or 0.
inline void amx_bf16_panels(const Weight& w, const uint8_t* panel, int panels, const uint8_t* next, const Acts& acts, int rows,
                            float* c) {
  const int64_t bytes = panel_bytes(w);
  const int steps = w.k / BF16_STEP;
  const Tiles tiles(rows, AMX_ROWS);
  const Ahead ahead = {next, panels * bytes, steps};
  forget();  // what was written is what the unit reads
  auto tile = [&](int i) { return AmxRows{acts.q + int64_t(tiles.first(i)) * w.k * act_bytes(w), tiles.rows(i), c + tiles.first(i) * LANES}; };
  for (int i = 0; i < tiles.count; i += 2) {
    Fetch fetch(ahead, i / 2, (tiles.count + 1) / 2);
    const AmxRows a = tile(i);
    if (i + 1 == tiles.count) {
      if (panels == 2) amx_bf16_tiles<false, true>(panel, bytes, steps, fetch, a, a);
      else amx_bf16_tiles<false, false>(panel, bytes, steps, fetch, a, a);
    } else {
      if (panels == 2) amx_bf16_tiles<true, true>(panel, bytes, steps, fetch, a, tile(i + 1));
      else amx_bf16_tiles<true, false>(panel, bytes, steps, fetch, a, tile(i + 1));
    }
  }
  forget();  // and what it wrote is what is read
}

#endif

}  // namespace
