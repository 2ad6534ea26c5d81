// A panel of weights over any number of rows: which tiles they meet, and how their activations lie for that.
#pragma once
#include <type_traits>

#include "amx.h"
#include "gemm.h"
#include "tasks.h"

namespace {

constexpr int FLOAT_BLOCK = 128;       // features of a block: it and six rows of activations take half of L1
constexpr int PAIR_FROM_ROWS = 32;     // of float panels: fewer rows wait for memory, which two streams make no faster
constexpr int WIDEN_FROM_ROWS = 32;    // of a four-bit panel; two-byte weights gain from the second tile on

// How the prepared activations of a block of rows lie (Acts), by the tiles that will read them.
struct Layout {
  int tile_rows;
  bool amx;
};
TS_INLINE Layout layout_of(const Weight& w, [[maybe_unused]] int rows, [[maybe_unused]] bool may_use_amx) {
#if TS_HAVE_AMX
  if (may_use_amx && suits_amx(w, rows)) return {AMX_ROWS, true};
#endif
  return {w.format == U4 ? U4_ROWS : w.format == INT8 ? INT8_ROWS : BF16X2_ROWS, false};
}

// Groups of one row: q = round(x * limit / max|x|), half to even. A group that holds a NaN or an infinity gets a NaN scale, so
// that the damage shows in this row's results and nowhere else. The row is number r of a tile's, and `to` is the tile's. Rows have
// often been written by another processor: the next one is prefetched.
template <class T>
inline void quantize_groups(const float* row, const float* next_row, int group, int first, int last, [[maybe_unused]] const Layout& layout,
                            const Acts& to, int r, int rows) {
  constexpr float limit = sizeof(T) == 1 ? 127.0f : 32767.0f;
  for (int g = first; g < last; ++g) {
    const float* x = row + g * group;
    uint8_t* q = to.q + int64_t(g) * group * rows * sizeof(T);
    vf biggest = zero(), poison = zero();
    for (int i = 0; i < group; i += LANES) {
      __builtin_prefetch(next_row + g * group + i);
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
#if TS_HAVE_AMX
      if (layout.amx) store_for_amx<T>(q + r * group + i, int64_t(rows) * group, v);
      else
#endif
        store_words<T>(q + (i * sizeof(T) * rows + 4 * r), 4 * rows, v);
      total = add(total, v);
    }
    const float scale = finite ? top / limit : NAN;
    to.scale[g * rows + r] = scale;
    to.sum[g * rows + r] = scale * sum_lanes(total);  // the sum itself is a small integer: exact in any order
  }
}

struct Bf16x2Tiles {
  Block b;
  const Acts& a;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, const Fetch& fetch) const {
    bf16x2_tile<R>(b, fetch, acts_of(b.w, a, row), c + row * LANES);
  }
};

template <bool WIDE>
struct U4Tiles {
  Block b;
  const Acts& a;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, const Fetch& fetch) const {
    u4_tile<R, WIDE>(b, fetch, acts_of(b.w, a, row), c + row * LANES);
  }
};

struct Int8Tiles {
  Block b;
  const Acts& a;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, const Fetch& fetch) const {
    int8_tile<R>(b, fetch, acts_of(b.w, a, row), c + row * LANES);
  }
};

template <int FORMAT, int PANELS>
inline void float_panels(const Weight& w, const uint8_t* panel, const uint8_t* next, const float* x, int64_t stride, int rows, float* c,
                         uint8_t* wide) {
  constexpr int64_t bytes = LANES * (FORMAT == F32 ? 4 : 2), wide_bytes = FLOAT_BLOCK * LANES * 4;
  const bool widens = FORMAT != F32 && rows > FLOAT_ROWS;
  const int most = FORMAT == F32 && PANELS == 2 ? w.k : FLOAT_BLOCK;
  for (int k = 0; k < w.k; k += most) {
    const Block b = {w, panel + k * bytes, std::min(most, w.k - k), k == 0};
    const Ahead ahead = {next ? next + PANELS * k * bytes : nullptr, PANELS * b.steps * bytes, std::max(1, b.steps / FLOAT_STEP)};
    if (!widens) {
      in_tiles<FLOAT_ROWS>(rows, ahead, FloatTiles<FORMAT, PANELS>{b, panel_bytes(w), x + k, stride, c});
      continue;
    }
    for (int p = 0; p < PANELS; ++p) {
      const uint8_t* from = b.data + p * panel_bytes(w);
      float* to = (float*)(wide + p * wide_bytes);
      for (int i = 0; i < b.steps; i += 2) {
        store(to + i * LANES, load_weights<FORMAT>(from, i, false));
        if (i + 1 < b.steps) store(to + (i + 1) * LANES, load_weights<FORMAT>(from, i + 1, true));
      }
    }
    in_tiles<FLOAT_ROWS>(rows, ahead, FloatTiles<F32, PANELS>{{w, wide, b.steps, b.first}, wide_bytes, x + k, stride, c});
  }
}

inline void integer_panel(const Weight& w, const uint8_t* panel, const Ahead& ahead, const Acts& a, int rows, float* c, uint8_t* wide) {
  const int groups = w.k / w.group;
  if (w.format == INT8) return in_tiles<INT8_ROWS>(rows, ahead, Int8Tiles{{w, panel, groups, true}, a, c});
  if (rows < WIDEN_FROM_ROWS) return in_tiles<U4_ROWS>(rows, ahead, U4Tiles<false>{{w, panel, groups, true}, a, c});
  widen_u4(w, panel, groups, wide);
  in_tiles<U4_ROWS>(rows, ahead, U4Tiles<true>{{w, wide, groups, true}, a, c});
}

// c[rows][16] = activations x panel, for weights whose activations are prepared; `next` is the panel to prefetch, or 0.
inline void act_panel(const Weight& w, const uint8_t* panel, const uint8_t* next, const Acts& a, int rows, float* c, uint8_t* wide) {
  if (w.format != BF16X2) return integer_panel(w, panel, {next, panel_bytes(w), w.k / w.group}, a, rows, c, wide);
  const int steps = w.k / BF16_STEP;
  in_tiles<BF16X2_ROWS>(rows, {next, panel_bytes(w), steps}, Bf16x2Tiles{{w, panel, steps, true}, a, c});
}

// Panels that are multiplied together: what is loaded of activations is used for both.
TS_INLINE int panels_at_once(const Weight& w, const Layout& layout) {
  if (layout.amx) return 2;
  return act_bytes(w) ? 1 : FLOAT_PANELS;
}

// c[panel][MAX_BLOCK_ROWS][16] = activations x one or two panels: `x` for float weights, `a` for others. `next` is what follows
// them and is to be prefetched, or 0; `wide` is scratch for widened weights.
inline void run_panels(const Weight& w, const uint8_t* panel, int panels, const uint8_t* next, const float* x, int64_t x_stride,
                       const Acts& a, [[maybe_unused]] const Layout& layout, int rows, float* c, uint8_t* wide) {
#if TS_HAVE_AMX
  if (layout.amx) return amx_panels(w, panel, panels, next, a, rows, c, wide);
#endif
  auto one_by_one = [&](auto&& multiply) TS_LAMBDA {
    const int64_t bytes = panel_bytes(w);
    for (int i = 0; i < panels; ++i, panel += bytes, c += MAX_BLOCK_ROWS * LANES) multiply(i + 1 < panels ? panel + bytes : next);
  };
  auto floats = [&](auto format) TS_LAMBDA {
    constexpr int FORMAT = decltype(format)::value;
    if (panels == FLOAT_PANELS && rows >= PAIR_FROM_ROWS) return float_panels<FORMAT, FLOAT_PANELS>(w, panel, next, x, x_stride, rows, c, wide);
    one_by_one([&](const uint8_t* after) TS_LAMBDA { float_panels<FORMAT, 1>(w, panel, after, x, x_stride, rows, c, wide); });
  };
  switch (w.format) {
    case F32: return floats(std::integral_constant<int, F32>());
    case F16: return floats(std::integral_constant<int, F16>());
    case BF16: return floats(std::integral_constant<int, BF16>());
    default: one_by_one([&](const uint8_t* after) TS_LAMBDA { act_panel(w, panel, after, a, rows, c, wide); });
  }
}

}  // namespace
