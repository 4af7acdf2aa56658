// Compiles the file PE_KERNEL_FILE once per instruction set, each time in its own namespace:
//
//   #define PE_KERNEL_FILE "norm_kernels.inc"
//   #include "for_each_isa.h"
//   ... PE_KERNELS(norm_kernels).forward(...)
//
// The file sees the vector types of vec.inc. It must not include headers (their inline functions
// would be compiled for the wrong processor) nor start threads: kernels are plain functions over a
// range, put into a table of function pointers that the calling code picks at run time.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef PE_KERNEL_FILE
#error "define PE_KERNEL_FILE before including for_each_isa.h"
#endif

#define PE_INLINE static inline __attribute__((always_inline))

#define PE_WIDTH 4
#define PE_LEVEL 0
namespace paddle_ernie {
namespace portable {
#include "vec.inc"
#include PE_KERNEL_FILE
}  // namespace portable
}  // namespace paddle_ernie
#undef PE_WIDTH
#undef PE_LEVEL

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#define PE_WIDTH 8
#define PE_LEVEL 1
namespace paddle_ernie {
namespace avx2 {
#include "vec.inc"
#include PE_KERNEL_FILE
}  // namespace avx2
}  // namespace paddle_ernie
#undef PE_WIDTH
#undef PE_LEVEL
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#define PE_WIDTH 16
#define PE_LEVEL 2
namespace paddle_ernie {
namespace avx512 {
#include "vec.inc"
#include PE_KERNEL_FILE
}  // namespace avx512
}  // namespace paddle_ernie
#undef PE_WIDTH
#undef PE_LEVEL
#pragma GCC pop_options
#endif

#undef PE_KERNEL_FILE
