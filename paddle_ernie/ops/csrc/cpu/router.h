// Routing: softmax over the experts, choice of the top K of probability + bias, their weights.
//
//   p = softmax(scores)                          [T, E]
//   ids = the K largest of p + bias, of equals the lower id; or a replayed record
//   w_k = p[ids_k] / max(sum_k p[ids_k], 1e-12)
//
// Sums run over ascending ids, whatever the ranking, so that a replayed record gives the bits of
// the routing that it was recorded from in any order. NaN ranks below every number.
#pragma once

#include <cstdint>

namespace paddle_ernie {

struct Routing {
  int64_t T, E, K;             // 1 <= K <= E
  const float* scores;         // [T, E]
  const float* bias;           // [E]
  const int32_t* replay;       // [T, K], rows of -1: no record; null: no record at all
  int64_t* ids;                // [T, K], best first; replayed rows as recorded
  float* weights;              // [T, K]
  float* probabilities;        // [T, E]
};

struct RoutingGradient {
  int64_t T, E, K;
  const float* probabilities;   // [T, E]
  const int64_t* ids;           // [T, K]
  const float* weights;         // [T, K]
  const float* dweights;        // [T, K]
  const float* dprobabilities;  // [T, E] or null
  float* dscores;               // [T, E]
};

struct RouterKernels {
  int64_t (*scratch_floats)(int64_t E, int64_t K);
  void (*forward)(const Routing& routing, float* scratch, int64_t begin, int64_t end);
  void (*backward)(const RoutingGradient& gradient, float* scratch, int64_t begin, int64_t end);
};

// Returns the first token whose record is neither K distinct ids below E nor K times -1, and
// computes nothing then; -1 if all is well.
int64_t route(const Routing& routing);

void route_gradient(const RoutingGradient& gradient);

}  // namespace paddle_ernie
