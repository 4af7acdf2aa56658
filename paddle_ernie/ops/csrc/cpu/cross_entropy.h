// Softmax over the vocabulary: log-probabilities, entropies, and their gradients, either of given
// logits or of hidden [T, D] * weight [V, D]^T, whose logits exist only a chunk of tokens at a time.
//
// One row function computes the log-sum-exp everywhere, in an order that depends on V only: equal
// logits give equal bits in training, scoring and decoding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gemm.h"

namespace paddle_ernie {

constexpr int64_t kNoTarget = -100;  // label of a token for which nothing is computed

// Of one row z: z is scaled first, x = z * inverse_temperature.
struct RowStatistics {
  float peak;     // max z
  float log_sum;  // log sum exp((z - peak) * inverse_temperature)
  float entropy;  // -sum p log p, in nats
};

struct CrossEntropyKernels {
  RowStatistics (*statistics)(const float* z, int64_t V, float inverse_temperature);
  // out may be z.
  void (*log_softmax)(const float* z, int64_t V, float inverse_temperature,
                      const RowStatistics& row, float* out);
  // In place: logits become dlogprob * d log p[label] / dz + dentropy * d entropy / dz.
  void (*gradient)(float* z, int64_t V, float inverse_temperature, const RowStatistics& row,
                   int64_t label, float dlogprob, float dentropy);
};

// What a label and a temperature per token say about rows of logits.
struct Targets {
  const int64_t* labels;
  const float* temperatures;  // null: 1 everywhere
};

struct TokenResults {  // [T] each
  float* logprobs;     // 0 without a target
  float* entropies;    // 0 without a target
  RowStatistics* rows;  // kept for the gradient
};

struct Head {
  const float* hidden;         // [T, D]
  int64_t T, D, V;
  const void* packed_logits;   // weight^T [D, V] in format `forward`
  const void* packed_dhidden;  // weight [V, D] in format `dgrad`; null if dhidden is
  Format forward, dgrad, wgrad;
  int64_t chunk;               // tokens whose logits exist at a time
};

struct TokenGradients {
  const float* dlogprobs;   // [T]
  const float* dentropies;  // [T], null: 0 everywhere
};

struct HeadGradients {
  float* dhidden;  // [T, D]; null: not wanted
  float* dweight;  // [V, D]; null: not wanted
};

// Fills `results`.
void head_forward(const Head& head, const Targets& targets, const TokenResults& results);

// Computes the logits again and uses results.rows.
void head_backward(const Head& head, const Targets& targets, const TokenResults& results,
                   const TokenGradients& upstream, const HeadGradients& gradients);

// Both with the same logits, for a loss whose upstream gradient is known beforehand.
void head_forward_backward(const Head& head, const Targets& targets, const TokenResults& results,
                           const TokenGradients& upstream, const HeadGradients& gradients);

// logits [N, V] -> logprobs, entropies [N].
void logits_logprobs(const float* logits, int64_t N, int64_t V, const Targets& targets,
                     float* logprobs, float* entropies);

// logits [N, V] -> log p [N, V].
void log_softmax(const float* logits, int64_t N, int64_t V, const float* temperatures, float* out);

}  // namespace paddle_ernie
