// A panel of weights over any number of rows: which tiles they meet, and how their activations lie for that.
#pragma once
#include "amx.h"
#include "gemm.h"
#include "tasks.h"

namespace {

constexpr int FLOAT_BLOCK = 128;       // features of a block: it and six rows of activations take half of L1
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
  return {w.format == U4 ? U4_ROWS : w.format == INT8 ? INT8_ROWS : BF16X3_ROWS, false};
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

struct Bf16x3Tiles {
  Block b;
  const Acts& a;
  float* c;
  template <int R>
  TS_INLINE void operator()(int row, const Fetch& fetch) const {
    bf16x3_tile<R>(b, fetch, acts_of(b.w, a, row), c + row * LANES);
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
      for (int i = 0; i < b.steps; i += 2) {
        store((float*)wide + i * LANES, load_weights<FORMAT>(b.data, i, false));
        if (i + 1 < b.steps) store((float*)wide + (i + 1) * LANES, load_weights<FORMAT>(b.data, i + 1, true));
      }
      in_tiles<FLOAT_ROWS>(rows, ahead, FloatTiles<F32>{{w, wide, b.steps, b.first}, x + k, stride, c});
    }
  }
}

inline void integer_panel(const Weight& w, const uint8_t* panel, const Ahead& ahead, const Acts& a, int rows, float* c, uint8_t* wide) {
  const int groups = w.k / w.group;
  if (w.format == INT8) return in_tiles<INT8_ROWS>(rows, ahead, Int8Tiles{{w, panel, groups, true}, a, c});
  if (rows < WIDEN_FROM_ROWS) return in_tiles<U4_ROWS>(rows, ahead, U4Tiles<false>{{w, panel, groups, true}, a, c});
  widen_u4(w, panel, groups, wide);
  in_tiles<U4_ROWS>(rows, ahead, U4Tiles<true>{{w, wide, groups, true}, a, c});
}

// c[rows][16] = activations x panel. `x` for float weights, `a` for integer ones; `next` is the panel to prefetch,
// or 0; `wide` is scratch for widened weights.
inline void run_panel(const Weight& w, const uint8_t* panel, const uint8_t* next, const float* x, int64_t x_stride,
                      const Acts& a, int rows, float* c, uint8_t* wide) {
  switch (w.format) {
    case F32: return float_panel<F32>(w, panel, next, x, x_stride, rows, c, wide);
    case F16: return float_panel<F16>(w, panel, next, x, x_stride, rows, c, wide);
    case BF16: return float_panel<BF16>(w, panel, next, x, x_stride, rows, c, wide);
    case BF16X3: return in_tiles<BF16X3_ROWS>(rows, {next, panel_bytes(w), w.k / BF16_STEP}, Bf16x3Tiles{{w, panel, w.k / BF16_STEP, true}, a, c});
    case INT8:
    case U4: return integer_panel(w, panel, {next, panel_bytes(w), w.k / w.group}, a, rows, c, wide);
  }
}

}  // namespace
