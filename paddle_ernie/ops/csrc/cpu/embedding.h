// Rows of a table by id, and the table's gradient.
#pragma once

#include <cstdint>

namespace paddle_ernie {

struct EmbeddingKernels {
  void (*add_row)(const float* row, float* total, int64_t D);
};

// y[t] = weight[ids[t]]; ids [T] in [0, V), weight [V, D], y [T, D].
void embedding_forward(const int64_t* ids, const float* weight, float* y, int64_t T, int64_t D);

// dweight [V, D]: row v is the sum of dy[t] over the tokens with ids[t] == v, in token order.
void embedding_backward(const int64_t* ids, const float* dy, float* dweight, int64_t T, int64_t V,
                        int64_t D);

}  // namespace paddle_ernie
