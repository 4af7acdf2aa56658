#include "norm.h"

#include <algorithm>
#include <cstring>

#include "isa.h"
#include "parallel.h"
#include "pieces.h"
#include "workspace.h"

#define PE_KERNEL_FILE "norm_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {
namespace {

// Rows whose share of the weight's gradient is added up in one piece. A function of the width
// only, so that the sum's order never depends on threads; 32 at least, so that the partial sums
// stay small beside x.
int64_t rows_per_block(int64_t D) {
  return std::max<int64_t>(32, rows_of_bytes(2 * kPieceBytes, D * 4));
}

}  // namespace

void norm_forward(const float* x, const float* delta, const float* weight, float eps, float* sum,
                  float* y, float* scale, int64_t T, int64_t D) {
  const NormKernels& kernels = PE_KERNELS(norm_kernels);
  parallel_for(T, rows_of_bytes(kPieceBytes, D * 4), [&](int64_t begin, int64_t end) {
    kernels.forward(x, delta, weight, eps, sum, y, scale, D, begin, end);
  });
}

void norm_backward(const float* x, const float* weight, const float* scale, const float* dy,
                   const float* dsum, float* dx, float* dx_copy, float* dweight, int64_t T,
                   int64_t D) {
  static thread_local Workspace workspace;
  const NormKernels& kernels = PE_KERNELS(norm_kernels);
  const int64_t block = rows_per_block(D), blocks = (T + block - 1) / block;
  float* partial = workspace.get<float>(blocks * D);
  parallel_for(T, block, [&](int64_t begin, int64_t end) {
    float* mine = partial + begin / block * D;
    std::memset(mine, 0, D * sizeof(float));
    kernels.backward(x, weight, scale, dy, dsum, dx, dx_copy, mine, D, begin, end);
  });
  if (dweight) kernels.add_rows(partial, blocks, D, dweight);
}

}  // namespace paddle_ernie
