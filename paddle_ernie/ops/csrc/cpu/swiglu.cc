#include "swiglu.h"

#include "isa.h"
#include "parallel.h"
#include "pieces.h"

#define PE_KERNEL_FILE "swiglu_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {

void swiglu_forward(const float* gate_up, float* y, int64_t T, int64_t F) {
  const SwigluKernels& kernels = PE_KERNELS(swiglu_kernels);
  parallel_for(T, rows_of_bytes(kPieceBytes, F * 8), [&](int64_t begin, int64_t end) {
    kernels.forward(gate_up, y, F, begin, end);
  });
}

void swiglu_backward(const float* gate_up, const float* dy, float* dgate_up, int64_t T, int64_t F) {
  const SwigluKernels& kernels = PE_KERNELS(swiglu_kernels);
  parallel_for(T, rows_of_bytes(kPieceBytes, F * 8), [&](int64_t begin, int64_t end) {
    kernels.backward(gate_up, dy, dgate_up, F, begin, end);
  });
}

}  // namespace paddle_ernie
