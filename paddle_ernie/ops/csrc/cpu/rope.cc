#include "rope.h"

#include "isa.h"
#include "parallel.h"
#include "pieces.h"

#define PE_KERNEL_FILE "rope_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {

void rope(const float* x, const float* rotations, bool inverse, float* y, int64_t heads, int64_t T,
          int64_t N, int64_t d) {
  const RopeKernels& kernels = PE_KERNELS(rope_kernels);
  parallel_for(T, rows_of_bytes(kPieceBytes, N * d * 4), [&](int64_t begin, int64_t end) {
    kernels.rotate(x, rotations, inverse, y, heads, N, d, begin, end);
  });
}

}  // namespace paddle_ernie
