// The C ABI between Python (kernels/abi.py mirrors every struct with ctypes) and the kernels.
//
// Conventions: activations are f32, row-major, rows padded to a multiple of 16 floats; what is in the
// padding counts nowhere (it is zero until a row held a NaN).
// Weights are packed in panels of 16 output columns (kernels/packing.py draws the layouts).
#pragma once
#include <cstdint>

// BF16X2: bf16 weights whose activations are multiplied in two bf16 parts; see gemm.h.
enum Format : int32_t { F32 = 0, F16 = 1, BF16 = 2, INT8 = 3, U4 = 4, BF16X2 = 5 };
enum OpKind : int32_t { EMBED = 0, RMS_NORM = 1, LINEAR = 2, ROPE_AND_CACHE = 3, ATTENTION = 4, GATHER_ROWS = 5 };
enum RowSpace : int32_t { TOKENS = 0, LOGITS = 1 };  // how many rows an operation has in a step

struct Buffer {
  float* data;
  int64_t stride;  // floats from one row to the next
};

struct Weight {
  const uint8_t* data;
  int32_t format;     // Format
  int32_t n, k;       // output and input features
  int32_t group;      // input features that share a scale (integer formats); BF16X2: 32, those of a step
  int32_t has_min;    // 1: a minimum follows each scale; U4 without: it is -8 scales
  int32_t f16_scale;  // 1: scales and minima are f16, 0: f32
};

// One operation of a recorded program. Fields that a kind does not use are zero.
struct Op {
  int32_t kind;   // OpKind
  int32_t rows;   // RowSpace
  Buffer in, out;
  Buffer residual;        // LINEAR: added to the output when data != 0
  Weight weight;          // LINEAR, EMBED
  const float* vector;    // RMS_NORM: weight; LINEAR: bias or 0
  int32_t width;          // RMS_NORM, GATHER_ROWS: features of a row
  int32_t silu_mul;       // LINEAR: panels alternate gate, up; the output is silu(gate) * up
  float eps;              // RMS_NORM, ROPE_AND_CACHE (query and key norms)
  float scale;            // ROPE_AND_CACHE: multiplied into the queries
  int32_t layer, num_heads, num_kv_heads, head_dim, window;  // attention; window 0 = full
  const float *cos, *sin;        // [positions][head_dim / 2]
  const float *q_norm, *k_norm;  // [head_dim] or 0
};

// The physical KV-cache: K [block][layer][kv_head][head_dim][slot], V [block][layer][kv_head][slot][head_dim];
// int8 adds f32 scales [block][layer][kv_head][slot].
struct KVCache {
  uint8_t *k, *v;
  float *k_scale, *v_scale;
  int32_t format;  // F32, F16, BF16 or INT8
  int32_t block_size, num_layers, num_kv_heads, head_dim;
};

// One step's ragged batch. Sequence s owns token rows seq_starts[s] .. seq_starts[s + 1] - 1 and the blocks
// block_ids[block_starts[s]] ...
struct Step {
  int32_t num_tokens, num_seqs, num_logits;
  int32_t cascade;  // 1: sequences that begin with the same blocks attend to them together; the same bits
  const int32_t *token_ids, *positions, *slots;
  const int32_t *seq_starts, *block_ids, *block_starts;
  const int32_t* logit_rows;
};

// One row of a sampling call; pointers are into arrays that outlive the call.
struct SampleArgs {
  int32_t row;
  int32_t target;        // >= 0: score this token instead of drawing
  int32_t num_logprobs;  // -1: report none
  int32_t num_bias, num_banned, num_allowed, num_prompt, num_output;
  float temperature, top_p, min_p, presence, frequency, repetition;
  int32_t top_k;  // 0 = off
  int32_t choice;
  uint64_t seed;
  int64_t position;
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* banned_ids;
  const int32_t* allowed_ids;
  const uint32_t* mask;  // bit i of word i / 32 allows token i; 0 = no mask
  const int32_t* prompt_ids;
  const int32_t* output_ids;
  float* probs;  // [vocab], if not 0: receives the distribution that the draw is from
};

struct SampleResult {
  int32_t token_id;
  int32_t rank;
  int32_t is_nan;
  float logprob;
};
