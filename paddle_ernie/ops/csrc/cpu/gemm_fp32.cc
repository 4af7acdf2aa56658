#include "gemm_engine.h"
#include "isa.h"

#define PE_KERNEL_FILE "gemm_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {

const Engine& fp32_engine() { return PE_KERNELS(gemm_engine); }

}  // namespace paddle_ernie
