// AdamW (Loshchilov & Hutter 2019) over all parameters in one pass, and the sum of squares for the
// global gradient norm. Work is cut into fixed pieces, so that results do not depend on threads.
#pragma once

#include <cstdint>
#include <vector>

namespace paddle_ernie {

struct AdamwTensor {
  float* parameter;
  const float* gradient;  // null: zero
  float *moment1, *moment2;
  int64_t count;
  bool decays;
};

// In the form of Paddle's kernel:
//   g = scale * gradient;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p = p - p * decay;  p = p - rate * m / (sqrt(v) + epsilon)
// with the bias corrections c1 = 1 - beta1^t, c2 = 1 - beta2^t folded into
// rate = learning_rate * sqrt(c2) / c1 and epsilon = eps * sqrt(c2).
struct AdamwStep {
  float scale, beta1, beta2, rate, epsilon, decay;
};

struct AdamwKernels {
  void (*update)(const AdamwTensor& tensor, const AdamwStep& step, int64_t begin, int64_t end);
  double (*sum_of_squares)(const float* x, int64_t begin, int64_t end);
};

void adamw(const std::vector<AdamwTensor>& tensors, const AdamwStep& step);

struct Span {
  const float* data;
  int64_t count;
};

// In fp64, piece by piece in order. NaN and infinities show in the result.
double sum_of_squares(const std::vector<Span>& spans);

}  // namespace paddle_ernie
