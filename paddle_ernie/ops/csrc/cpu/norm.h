// RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row (Zhang & Sennrich 2019), alone or
// together with the residual addition before it.
#pragma once

#include <cstdint>

namespace paddle_ernie {

struct NormKernels {
  void (*forward)(const float* x, const float* delta, const float* weight, float eps, float* sum,
                  float* y, float* scale, int64_t D, int64_t begin, int64_t end);
  void (*backward)(const float* x, const float* weight, const float* scale, const float* dy,
                   const float* dsum, float* dx, float* dx_copy, float* dweight, int64_t D,
                   int64_t begin, int64_t end);
  void (*add_rows)(const float* rows, int64_t count, int64_t D, float* total);
};

// x, y [T, D]; weight [D]; scale [T] receives 1 / rms. If `delta` [T, D] is not null, x + delta
// takes the place of x and is written to `sum` [T, D].
void norm_forward(const float* x, const float* delta, const float* weight, float eps, float* sum,
                  float* y, float* scale, int64_t T, int64_t D);

// x is what was normalised, dy the gradient of y. dx and, if not null, dx_copy receive
// d(loss)/dx, plus `dsum` if that is not null; dweight [D], if not null, the weight's gradient,
// summed over fixed blocks of rows.
void norm_backward(const float* x, const float* weight, const float* scale, const float* dy,
                   const float* dsum, float* dx, float* dx_copy, float* dweight, int64_t T,
                   int64_t D);

}  // namespace paddle_ernie
