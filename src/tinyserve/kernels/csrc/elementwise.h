// Row-wise operations: embedding, RMS norm, gathering rows, rotary embedding and the write into the KV-cache.
#pragma once
#include "abi.h"
#include "gemm.h"
#include "simd.h"
#include "tasks.h"

namespace {

TS_INLINE int padded(int n) { return (n + LANES - 1) / LANES * LANES; }

// One row of a packed table, widened to f32 exactly as kernels/formats.py dequantizes it.
inline void embed_row(const Weight& w, int32_t token, float* out) {
  const uint8_t* panel = w.data + (token / LANES) * panel_bytes(w);
  const int column = token % LANES;
  if (w.format <= BF16) {
    for (int i = 0; i < w.k; ++i) {
      const int64_t at = int64_t(i) * LANES + column;
      out[i] = w.format == F32   ? ((const float*)panel)[at]
               : w.format == F16 ? f16_to_f32(((const uint16_t*)panel)[at])
                                 : bf16_to_f32(((const uint16_t*)panel)[i / 2 * 2 * LANES + 2 * column + i % 2]);
    }
    return;
  }
  const int64_t values = w.format == U4 ? U4_VALUES : int64_t(LANES) * w.group;
  for (int g = 0; g < w.k / w.group; ++g, panel += group_bytes(w), out += w.group) {
    float scale[LANES], least[LANES] = {};
    const vf scales = load_scale(panel + values, w.f16_scale);
    store(scale, scales);
    if (w.format == U4) store(least, load_u4_min(w, panel + values, scales));
    else if (w.has_min) store(least, load_scale(panel + values + scale_bytes(w), w.f16_scale));
    for (int i = 0; i < w.group; ++i) {
      const int q = w.format == U4
                        ? (panel[32 * (i / 4) + 4 * (column & 7) + i % 4] >> (column < 8 ? 0 : 4)) & 15
                        : ((const int8_t*)panel)[32 * (i / 2) + 2 * column + i % 2];
      out[i] = static_cast<float>(q) * scale[column] + least[column];
    }
  }
}

// out = x / sqrt(mean(x^2) + eps) * weight over `width` features; rows are padded to 16. Padding is not trusted: once a
// row held a NaN, it may hold one too, and outlive the row.
inline void rms_norm_row(const float* x, const float* weight, int width, float eps, float* out) {
  vf squares = zero();
  for (int i = 0; i < width; i += LANES) {
    const vf v = i + LANES <= width ? load(x + i) : lanes_from_to(load(x + i), 0, width - i, 0.0f);
    squares = fma(v, v, squares);
  }
  const vf inverse = set1(1.0f / std::sqrt(sum_lanes(squares) / static_cast<float>(width) + eps));
  for (int i = 0; i < width; i += LANES) store(out + i, mul(mul(load(x + i), inverse), load(weight + i)));
}

// `n` floats, zeros after them up to whole lanes.
TS_INLINE void copy_padded(float* to, const float* from, int n) {
  memcpy(to, from, n * sizeof(float));
  for (int i = n; i < padded(n); ++i) to[i] = 0.0f;
}

// One head of one token: optional norm, rotation of (i, i + half) pairs, a factor. In place on x[head_dim].
inline void rope_head(float* x, const Op& op, const float* norm, int32_t position, float factor) {
  const int half = op.head_dim / 2;
  float head[MAX_HEAD_DIM], a[MAX_HEAD_DIM / 2], b[MAX_HEAD_DIM / 2], c[MAX_HEAD_DIM / 2], s[MAX_HEAD_DIM / 2];
  copy_padded(head, x, op.head_dim);
  if (norm) rms_norm_row(head, norm, op.head_dim, op.eps, head);
  copy_padded(a, head, half);
  copy_padded(b, head + half, half);
  copy_padded(c, op.cos + int64_t(position) * half, half);
  copy_padded(s, op.sin + int64_t(position) * half, half);
  const vf f = set1(factor);
  for (int i = 0; i < half; i += LANES) {
    const vf va = load(a + i), vb = load(b + i), vc = load(c + i), vs = load(s + i);
    store(a + i, mul(fma(va, vc, sub(zero(), mul(vb, vs))), f));
    store(b + i, mul(fma(vb, vc, mul(va, vs)), f));
  }
  memcpy(x, a, half * sizeof(float));
  memcpy(x + half, b, half * sizeof(float));
}

TS_INLINE int64_t kv_unit(const KVCache& kv, int layer, int head, int32_t block) {
  return (int64_t(block) * kv.num_layers + layer) * kv.num_kv_heads + head;
}

// Store `n` floats at element `at`, `at + step`, ... of a cache slab. Returns the scale (int8) or 1.
inline float store_kv(uint8_t* slab, int format, int64_t at, int64_t step, const float* x, int n) {
  if (format == INT8) {
    float top = 0.0f;
    for (int i = 0; i < n; ++i) {
      const float magnitude = std::fabs(x[i]);
      if (!(magnitude <= top)) top = magnitude;  // keeps a NaN
    }
    const bool usable = top > 0.0f && top < INFINITY && 127.0f / top < INFINITY;
    const float inverse = usable ? 127.0f / top : 0.0f;
    for (int i = 0; i < n; ++i) ((int8_t*)slab)[at + i * step] = usable ? static_cast<int8_t>(nearbyintf(x[i] * inverse)) : 0;
    return top / 127.0f;
  }
  int i = 0;
  if (format == F16)
    for (; i + LANES <= n; i += LANES) {
      uint16_t narrow[LANES];
      store_f16(narrow, x + i);
      for (int j = 0; j < LANES; ++j) ((uint16_t*)slab)[at + (i + j) * step] = narrow[j];
    }
  for (; i < n; ++i) {
    if (format == F32) ((float*)slab)[at + i * step] = x[i];
    else if (format == F16) ((uint16_t*)slab)[at + i * step] = f32_to_f16(x[i]);
    else ((uint16_t*)slab)[at + i * step] = f32_to_bf16(x[i]);
  }
  return 1.0f;
}

inline void rope_and_cache_row(const Op& op, const KVCache& kv, const Step& step, int row) {
  const int d = op.head_dim;
  float* q = op.in.data + row * op.in.stride;
  float* k = q + op.num_heads * d;
  float* v = k + op.num_kv_heads * d;
  const int32_t position = step.positions[row];
  for (int h = 0; h < op.num_heads; ++h) rope_head(q + h * d, op, op.q_norm, position, op.scale);
  const int32_t block = step.slots[row] / kv.block_size, slot = step.slots[row] % kv.block_size;
  for (int h = 0; h < op.num_kv_heads; ++h) {
    rope_head(k + h * d, op, op.k_norm, position, 1.0f);
    const int64_t unit = kv_unit(kv, op.layer, h, block);
    const float ks = store_kv(kv.k, kv.format, unit * d * kv.block_size + slot, kv.block_size, k + h * d, d);
    const float vs = store_kv(kv.v, kv.format, (unit * kv.block_size + slot) * padded(d), 1, v + h * d, d);
    if (kv.format == INT8) {
      kv.k_scale[unit * kv.block_size + slot] = ks;
      kv.v_scale[unit * kv.block_size + slot] = vs;
    }
  }
}

}  // namespace
