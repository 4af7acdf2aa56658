#include "add.h"

#include <cstring>

#include "parallel.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kPiece = 1 << 14;

}  // namespace

void add(const float* a, const float* b, float* y, int64_t count) {
  parallel_for(count, kPiece, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
  });
}

void copy(const float* x, float* y, int64_t count) {
  parallel_for(count, kPiece, [&](int64_t begin, int64_t end) {
    std::memcpy(y + begin, x + begin, (end - begin) * sizeof(float));
  });
}

}  // namespace paddle_ernie
