// The matrix unit of newer x86 servers (AMX). One instruction adds, for 16 rows of activations and 16 columns of weights, the
// products of 32 or 64 features, in integers or in bf16. Sums of integers leave the unit through memory and are scaled as
// everywhere else: the same bits. int16 activations go in as high and low bytes.
#pragma once
#include "gemm.h"
#include "tasks.h"

namespace {

#if TS_HAVE_AMX

constexpr int AMX_ROWS = 16;
constexpr int AMX_LEAST = 8;  // rows of a tile: 17 are 9 + 8

// Few rows are faster without it.
TS_INLINE bool suits_amx(const Weight& w, int rows) {
  if (w.format == BF16X2) return true;
  if (w.format == U4) return rows >= 24;
  return w.format == INT8 && rows >= 2 * AMX_LEAST && w.group % 32 == 0;
}
TS_INLINE int amx_depth(const Weight& w) { return w.group % 64 == 0 ? 64 : 32; }  // features of an instruction

// The unit's instructions. Its registers are numbers, and compilers know neither these nor the memory that is read and written:
// forget() stands before loads and after stores.
template <int TILE>
TS_INLINE void clear_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(TILE)); }
template <int TILE>
TS_INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(TILE), "r"(from), "r"(stride));
}
template <int TILE>
TS_INLINE void store_tile(void* to) { asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(TILE), "r"(to), "r"(int64_t(64))); }
#define TS_MULTIPLY_TILES(name, instruction)                                                          \
  template <int SUMS, int ACTS, int WEIGHTS>                                                         \
  TS_INLINE void name() {                                                                            \
    asm volatile(instruction " %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(ACTS), "i"(WEIGHTS)); \
  }
TS_MULTIPLY_TILES(multiply_i8_u8, "tdpbsud")  // int8 activations, four-bit weights
TS_MULTIPLY_TILES(multiply_i8_i8, "tdpbssd")  // high bytes of activations, int8 weights
TS_MULTIPLY_TILES(multiply_u8_i8, "tdpbusd")  // low bytes
TS_MULTIPLY_TILES(multiply_bf16, "tdpbf16ps")

// The shapes of the unit's registers: up to 3 they hold sums, 4 and 5 activations, 6 and 7 weights. Held by a thread for a task.
class AmxShapes {
 public:
  explicit AmxShapes(const Weight& w) {
    struct {
      uint8_t palette = 1, unused[15] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    const int depth = w.format == BF16X2 ? BF16_STEP * 2 : amx_depth(w);  // bytes of a row of activations
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

// Groups of a panel as the unit reads them: rows of 64 bytes that hold four features of each column, then f32 scales and minima.
// Four-bit weights are widened to just that.
TS_INLINE int64_t amx_group_bytes(const Weight& w) { return LANES * (w.group + 8); }

inline void widen_for_amx(const Weight& w, const uint8_t* panel, int groups, uint8_t* wide) {
  if (w.format == U4) return widen_u4(w, panel, groups, wide);
  alignas(64) uint16_t pairs[2 * LANES];  // a row is two runs of the panel, in turns
  for (int i = 0; i < LANES; ++i) pairs[2 * i] = i, pairs[2 * i + 1] = LANES + i;
  const __m512i order = _mm512_load_si512(pairs);
  const int64_t values = int64_t(LANES) * w.group;
  for (; groups > 0; --groups, panel += group_bytes(w), wide += amx_group_bytes(w)) {
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

// ---- integer weights --------------------------------------------------------------------------------------------
// While instructions of the unit are under way, the processor has one port for floating point instead of two. So they take
// turns: a run of groups is multiplied for a tile of activations, then scaled.

constexpr int AMX_SUMS = AMX_ROWS * LANES;  // of a tile, as they leave the unit

// Of one or two panels the same run of groups, widened.
struct AmxRun {
  const Weight& w;
  const uint8_t* wide;
  int64_t panel_bytes;  // from one widened panel to the next
  int first, groups;
};

// The products of a tile of activations and a run, which leave the unit as sums[group][panel][16][16], for int16 activations as
// sums[group][panel][high, low][16][16]. The unit computes 16 rows whatever `rows` is: those beyond are garbage and never read.
template <bool TWO_PANELS>
TS_INLINE void amx_multiply(const AmxRun& b, Fetch& fetch, const int8_t* x, int rows, int32_t* sums) {
  const int64_t group_bytes = amx_group_bytes(b.w);
  constexpr int panels = TWO_PANELS ? 2 : 1;
  // Groups use one half of the registers in turns: their sums leave when the next but one needs them.
  auto turn = [&](auto half, int g) TS_LAMBDA {
    const int before = g - 2;
    if (g < b.groups) fetch.step();
    if (g < b.groups) load_tile<4 + half>(x + int64_t(g) * 32 * rows, 32);
    each<panels>([&](auto p) TS_LAMBDA {
      if (g < b.groups) load_tile<6 + p>(b.wide + p * b.panel_bytes + g * group_bytes, 64);
      if (before >= 0 && before < b.groups) store_tile<2 * half + p>(sums + (before * panels + p) * AMX_SUMS);
      if (g >= b.groups) return;
      clear_tile<2 * half + p>();
      multiply_i8_u8<2 * half + p, 4 + half, 6 + p>();
    });
  };
  for (int g = 0; g < b.groups + 2; g += 2) each<2>([&](auto half) TS_LAMBDA { turn(half, g + half); });
}

template <bool TWO_PANELS>
TS_INLINE void amx_multiply(const AmxRun& b, Fetch& fetch, const int16_t* x, int rows, int32_t* sums) {
  const int group = b.w.group, depth = amx_depth(b.w);
  const int64_t group_bytes = amx_group_bytes(b.w), part = int64_t(group) * rows;
  constexpr int panels = TWO_PANELS ? 2 : 1;
  for (int g = 0; g < b.groups; ++g) {
    const uint8_t *high = (const uint8_t*)x + 2 * g * part, *low = high + part, *panel = b.wide + g * group_bytes;
    each<2 * panels>([&](auto tile) TS_LAMBDA { clear_tile<tile>(); });
    for (int i = 0; i < group; i += depth) {
      fetch.step();
      load_tile<4>(high + i, group);
      load_tile<5>(low + i, group);
      each<panels>([&](auto p) TS_LAMBDA {
        load_tile<6 + p>(panel + p * b.panel_bytes + i * LANES, 64);
        multiply_i8_i8<2 * p, 4, 6 + p>();
        multiply_u8_i8<2 * p + 1, 5, 6 + p>();
      });
    }
    each<2 * panels>([&](auto tile) TS_LAMBDA { store_tile<tile>(sums + (2 * panels * g + tile) * AMX_SUMS); });
  }
}

// Add the sums of a run to R rows of one panel; `sums` lie `stride` apart from group to group.
template <class T, int R>
TS_INLINE void amx_scale(const AmxRun& b, Fetch& fetch, const uint8_t* panel, const Acts& acts, const int32_t* sums, int64_t stride,
                         float* c) {
  const bool has_min = b.w.format == U4 || b.w.has_min;
  const int64_t group_bytes = amx_group_bytes(b.w);
  const Acts a = acts;
  vf acc[R];
  begin(b.first == 0, c, acc);
  for (int g = 0; g < b.groups; ++g, sums += stride) {
    fetch.step();
    panel += group_bytes;
    const float* scales = (const float*)panel - 2 * LANES;
    const vf scale = load(scales), least = load(scales + LANES);
    each<R>([&](auto r) TS_LAMBDA {
      __m512i sum = _mm512_load_si512(sums + r * LANES);
      if (sizeof(T) == 2) sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), _mm512_load_si512(sums + AMX_SUMS + r * LANES));
      acc[r] = add_group(acc[r], {_mm512_cvtepi32_ps(sum)}, scale, a, g * R + r);
      if (has_min) acc[r] = add_min(acc[r], least, a, g * R + r);
      pin(acc[r]);
    });
  }
  keep(acc, c);
}

// Adds to c[panel][MAX_BLOCK_ROWS][16], for the rows of a tile, what a run of groups makes of them.
template <class T, bool TWO_PANELS>
struct AmxTiles {
  AmxRun b;
  const Acts& a;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, Fetch fetch) const {
    constexpr int panels = TWO_PANELS ? 2 : 1, parts = sizeof(T);
    alignas(64) int32_t sums[AMX_RUN / 32 * panels * parts * AMX_SUMS];
    Acts acts = acts_of(b.w, a, row);
    acts.q += int64_t(b.first) * b.w.group * R * sizeof(T), acts.scale += b.first * R, acts.sum += b.first * R;
    forget();  // what was written is what the unit reads
    amx_multiply<TWO_PANELS>(b, fetch, (const T*)acts.q, R, sums);
    forget();  // and what it wrote is what is read
    for (int p = 0; p < panels; ++p)
      amx_scale<T, R>(b, fetch, b.wide + p * b.panel_bytes, acts, sums + p * parts * AMX_SUMS, panels * parts * AMX_SUMS,
                      c + (p * MAX_BLOCK_ROWS + row) * LANES);
  }
};

template <class T, bool TWO_PANELS>
inline void amx_integer_panels(const Weight& w, const uint8_t* panel, const uint8_t* next, const Acts& acts, int rows, float* c,
                               uint8_t* wide) {
  constexpr int panels = TWO_PANELS ? 2 : 1;
  const int groups = w.k / w.group, run = std::max(1, AMX_RUN / w.group), runs = ceil_div(groups, run);
  const int64_t bytes = run * amx_group_bytes(w), share = panels * panel_bytes(w) / runs;
  for (int i = 0; i < runs; ++i, panel += run * group_bytes(w)) {
    const AmxRun b = {w, wide, bytes, i * run, std::min(run, groups - i * run)};
    for (int p = 0; p < panels; ++p) widen_for_amx(w, panel + p * panel_bytes(w), b.groups, wide + p * bytes);
    const int steps = b.groups * (w.group / amx_depth(w) + panels);
    in_tiles<AMX_ROWS, AMX_LEAST>(rows, {next ? next + i * share : nullptr, share, steps}, AmxTiles<T, TWO_PANELS>{b, acts, c});
  }
}

// ---- bf16 weights (BF16X2): the unit reads panels as they are ------------------------------------------------------

// A tile of activations, and where its sums go: those of 16 rows, whatever `rows` is.
struct AmxRows {
  const uint8_t* q;
  int rows;
  float* c;  // [panel][MAX_BLOCK_ROWS][16]
};

// One or two tiles of activations times one or two panels: what is loaded is used twice.
template <bool TWO_TILES, bool TWO_PANELS>
inline void amx_bf16_tiles(const uint8_t* panel, int64_t panel_bytes, int steps, Fetch& fetch, const AmxRows& a, const AmxRows& b) {
  const uint8_t *x = a.q, *y = b.q;
  const int64_t x_part = int64_t(a.rows) * BF16_STEP * 2, y_part = int64_t(b.rows) * BF16_STEP * 2;
  constexpr int panels = TWO_PANELS ? 2 : 1;
  each<4>([&](auto tile) TS_LAMBDA { clear_tile<tile>(); });
  for (int step = 0; step < steps; ++step) {
    fetch.step();
    each<panels>([&](auto p) TS_LAMBDA { load_tile<6 + p>(panel + p * panel_bytes + int64_t(step) * BF16_STEP * LANES * 2, 64); });
    each<BF16_PARTS>([&](auto) TS_LAMBDA {
      load_tile<4>(x, 64);
      x += x_part;
      each<panels>([&](auto p) TS_LAMBDA { multiply_bf16<p, 4, 6 + p>(); });
      if (!TWO_TILES) return;
      load_tile<5>(y, 64);
      y += y_part;
      each<panels>([&](auto p) TS_LAMBDA { multiply_bf16<2 + p, 5, 6 + p>(); });
    });
  }
  each<panels>([&](auto p) TS_LAMBDA {
    store_tile<p>(a.c + p * MAX_BLOCK_ROWS * LANES);
    if (TWO_TILES) store_tile<2 + p>(b.c + p * MAX_BLOCK_ROWS * LANES);
  });
}

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

// c[panel][MAX_BLOCK_ROWS][16] = activations x one or two panels; `next` are those to prefetch, or 0. `wide` is scratch.
inline void amx_panels(const Weight& w, const uint8_t* panel, int panels, const uint8_t* next, const Acts& acts, int rows, float* c,
                       uint8_t* wide) {
  if (w.format == BF16X2) amx_bf16_panels(w, panel, panels, next, acts, rows, c);
  else if (w.format == U4 && panels == 2) amx_integer_panels<int8_t, true>(w, panel, next, acts, rows, c, wide);
  else if (w.format == U4) amx_integer_panels<int8_t, false>(w, panel, next, acts, rows, c, wide);
  else if (panels == 2) amx_integer_panels<int16_t, true>(w, panel, next, acts, rows, c, wide);
  else amx_integer_panels<int16_t, false>(w, panel, next, acts, rows, c, wide);
}

#endif

}  // namespace
