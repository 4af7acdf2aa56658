// Sums and copies of whole tensors, on several threads.
#pragma once

#include <cstdint>

namespace paddle_ernie {

// y = a + b. Bound by memory: no instruction set makes it faster.
void add(const float* a, const float* b, float* y, int64_t count);

void copy(const float* x, float* y, int64_t count);

}  // namespace paddle_ernie
