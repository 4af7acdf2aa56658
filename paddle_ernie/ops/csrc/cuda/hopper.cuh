// Hopper's instructions that C++ has no words for: asynchronous copies and warpgroup products.
// (The tests put functions of the same names in their place and run the kernels on the CPU.)
#pragma once

#include <cstdint>

namespace paddle_ernie {
namespace cuda {

constexpr int kAccumulators = 64;  // per thread of a warpgroup: 64 x 128 values over 128 threads

// Formats of a product's operands.
struct Fp8 {
  static constexpr int kBytes = 1;
};
struct Bf16 {
  static constexpr int kBytes = 2;
};

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Starts copying sixteen bytes to shared memory; zeros if not `inside`.
__device__ inline void copy_16(uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}

// Copies of a thread since the last commit are one group; an empty group is one, too.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but this thread's `pending` latest groups are there, and visible to wgmma, which reads
// by another proxy. A barrier makes them visible to the other threads.
template <int pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define PE_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PE_SIXTEEN(d, i) PE_FOUR(d, i), PE_FOUR(d, i + 4), PE_FOUR(d, i + 8), PE_FOUR(d, i + 12)
#define PE_ALL(d) PE_SIXTEEN(d, 0), PE_SIXTEEN(d, 16), PE_SIXTEEN(d, 32), PE_SIXTEEN(d, 48)
#define PE_REGISTERS                                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                 \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "        \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "        \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

// wgmma is sm_90a's alone; in code for any other processor a product stops the kernel.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PE_HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define PE_HOPPER(...) __trap()
#endif

// d = a * b^T, or d += with `add`, over 32 bytes of K; a and b are descriptors of shared memory.
__device__ inline void multiply(Fp8, float (&d)[kAccumulators], uint64_t a, uint64_t b, int add) {
  PE_HOPPER(
      "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " PE_REGISTERS
      ", %64, %65, p, 1, 1;}\n"
      : PE_ALL(d)
      : "l"(a), "l"(b), "r"(add));
}

__device__ inline void multiply(Bf16, float (&d)[kAccumulators], uint64_t a, uint64_t b, int add) {
  PE_HOPPER(
      "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " PE_REGISTERS
      ", %64, %65, p, 1, 1, 0, 0;}\n"
      : PE_ALL(d)
      : "l"(a), "l"(b), "r"(add));
}

// The compiler may not move accesses to d over this: wgmma writes d behind the compiler's back.
__device__ inline void pin(float (&d)[kAccumulators]) {
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Products run between the two; afterwards they are in d.
__device__ inline void begin_products(float (&d)[kAccumulators]) {
  pin(d);
  PE_HOPPER("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void finish_products(float (&d)[kAccumulators]) {
  PE_HOPPER("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  pin(d);
}

}  // namespace cuda
}  // namespace paddle_ernie
