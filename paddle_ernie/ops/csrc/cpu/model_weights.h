// All weights of a model in one block of memory, packed for inference (see model_step.h).
//
//   header | layer 0: norm, qkv, o, norm, then gate_up, down           of a dense layer
//          |      ... or gate, bias, experts' gate_up, down, shared experts' gate_up, down
//          | layer 1 ...
//          | embedding [V, D] fp32, norm, head
//
// Matrices are packed as in gemm.h (FP8 by pack_codes), everything else is fp32. The layout depends
// on isa().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "gemm.h"

namespace paddle_ernie {

// In the order of the operator's attribute; every field is 8 bytes, so that headers compare.
struct ModelShape {
  int64_t V, D, H, G, d;      // vocabulary, width, query heads, key heads, their width
  int64_t layers, dense;      // the first `dense` have an MLP, the others experts
  int64_t F;                  // width of a dense layer's MLP
  int64_t E, K, expert_F;     // experts, of which each token takes K
  int64_t shared_F;           // of the shared experts together; 0: none
  int64_t tied;               // the head is the embedding
  int64_t format;             // of every matrix but router (fp32) and head (no FP8)
  int64_t power_of_two_scales;
  double eps;

  Format linear() const { return static_cast<Format>(format); }
  Format high() const { return linear() == Format::kFp8 ? Format::kBf16 : linear(); }
  Heads heads() const { return {H, G, d, high()}; }
};

struct LayerWeights {
  const float *input_norm, *post_norm;
  const uint8_t *qkv, *o;
  bool moe;
  const uint8_t *gate_up, *down;  // dense layer, or shared experts
  const uint8_t *gate, *experts_gate_up, *experts_down;
  const float* bias;
};

struct ModelWeights {
  ModelShape shape;
  std::vector<LayerWeights> layers;
  const float *embedding, *norm;
  const uint8_t* head;
};

// Of one weight, in the order of the block (the head comes last, and for a tied model is made from
// the embedding).
struct WeightPart {
  bool matrix;                // packed; else `N` floats
  Format format;
  int64_t count, K, N;        // `count` matrices [K, N]
  bool transposed;            // in the source they are [N, K]
  int64_t offset, bytes;      // in the block

  int64_t numbers() const { return count * K * N; }
};

std::vector<WeightPart> weight_parts(const ModelShape& shape);

int64_t model_bytes(const ModelShape& shape);

// `sources` has one pointer per part; `block` is aligned to kAlignment.
void pack_model(const ModelShape& shape, const std::vector<const float*>& sources, uint8_t* block);

// Whether this block was packed for the current isa().
bool model_fits(const uint8_t* block, int64_t bytes);

// Pointers into the block, which must stay.
ModelWeights open_model(const uint8_t* block);

}  // namespace paddle_ernie
