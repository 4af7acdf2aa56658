// SwiGLU (Shazeer 2020): y = silu(gate) * up, rows [gate | up] of width 2F to rows of width F.
#pragma once

#include <cstdint>

namespace paddle_ernie {

struct SwigluKernels {
  void (*forward)(const float* gate_up, float* y, int64_t F, int64_t begin, int64_t end);
  void (*backward)(const float* gate_up, const float* dy, float* dgate_up, int64_t F,
                   int64_t begin, int64_t end);
};

void swiglu_forward(const float* gate_up, float* y, int64_t T, int64_t F);

void swiglu_backward(const float* gate_up, const float* dy, float* dgate_up, int64_t T, int64_t F);

}  // namespace paddle_ernie
