// Attention in bf16 on tile registers (Intel AMX).
#include "attention_tasks.h"

#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 11
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#define PE_INLINE static inline __attribute__((always_inline))
#define PE_WIDTH 16
#define PE_LEVEL 2
#define PE_NATIVE_BF16 1

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,prefer-vector-width=512")
namespace paddle_ernie {
namespace amx {
#include "vec.inc"
#include "attention_pages.inc"
#include "attention_products.inc"
#include "attention_softmax.inc"
#include "attention_forward.inc"
#include "attention_backward.inc"
#include "attention_amx_tiles.inc"
#include "attention_amx_forward.inc"
#include "attention_amx_backward.inc"

// A multiple of 32, the rows of Q and dO that one tile product sums over.
static const AttentionKernels attention_kernels = {
    128, &write_scratch, &write_page, &amx_attend_scratch, &amx_attend, &amx_backward_scratch,
    &amx_backward};

}  // namespace amx

const AttentionKernels& amx_attention_kernels() { return amx::attention_kernels; }

}  // namespace paddle_ernie
#pragma GCC pop_options
#endif
