// Tokens into expert order and back. A slot is one assignment of a token to an expert; slots are
// sorted by expert, then by token. T tokens, N slots, D width, E experts.
#pragma once

#include <cstdint>

namespace paddle_ernie {

struct Dispatch {
  int64_t T, N;
  const int32_t* tokens;   // [N]; the token in each slot
  const int32_t* sources;  // [N]; which assignment, in routing order, a slot holds
  const int32_t* slots;    // [N]; the slots of each token, ascending
  const int32_t* starts;   // [T + 1]; slots of token t are slots[starts[t] .. starts[t + 1])
};

// From experts [N] in routing order and `starts`: a stable counting sort. counts [E]. Returns the
// first assignment that names no expert, and leaves the rest undefined then; -1 if all is well.
int64_t sort_slots(const int64_t* experts, const int32_t* starts, int64_t T, int64_t E,
                   int32_t* tokens, int32_t* sources, int32_t* slots, int64_t* counts);

struct PermuteKernels {
  void (*combine)(const Dispatch& to, const float* y, const float* weights, const float* const* bases,
                  int64_t num_bases, float* out, int64_t D, int64_t begin, int64_t end);
  void (*combine_gradient)(const Dispatch& to, const float* y, const float* weights,
                           const float* dout, float* dy, float* dweights, int64_t D, int64_t begin,
                           int64_t end);
};

// out[t] = ((base_0[t] + base_1[t] + ...) + w_0 y[slot_0]) + w_1 y[slot_1] + ..., in this order:
// bases as given, then slots as they rise, each product and its addition rounded once. weights [N]
// in routing order; null: all 1.
void combine(const Dispatch& to, const float* y, const float* weights, const float* const* bases,
             int64_t num_bases, float* out, int64_t D);

// dy[slot] = w * dout[token], dweights[source] = y[slot] . dout[token].
void combine_gradient(const Dispatch& to, const float* y, const float* weights, const float* dout,
                      float* dy, float* dweights, int64_t D);

}  // namespace paddle_ernie
