// One inference step of a whole model: the new tokens of many sequences, prefill chunks and decoded
// tokens mixed, through all layers to the logits of the wanted rows.
//
// A team of threads (team.h) walks through the stages of each layer together; the arithmetic is
// that of the operators which training uses, piece by piece, so the bits are theirs.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "model_weights.h"

namespace paddle_ernie {

struct StepBatch {
  int64_t T;                        // new tokens
  const int64_t* ids;               // [T], below V
  std::vector<Sequence> sequences;  // which together have the T tokens
  const float* rotations;           // [positions][d]: cos, sin of each pair
  std::vector<uint8_t*> pages;      // of each layer
  int64_t R;                        // wanted rows
  const int64_t* rows;              // [R], below T
};

// logits [R, V]. routes [T, MoE layers, K], or null, receives the chosen experts.
void model_step(const ModelWeights& model, const StepBatch& batch, float* logits, int32_t* routes);

}  // namespace paddle_ernie
