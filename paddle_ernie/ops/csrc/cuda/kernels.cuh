// The CUDA kernels' launch functions: plain pointers to device memory, no Paddle headers. Nothing
// calls them yet: they are compiled for Hopper (sm_90a), and have not run.
//
// Row-major throughout. A launch function returns cudaErrorInvalidValue for a shape it cannot take,
// else the error of the launch. Every element of a product adds in rising k, whatever M is.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace paddle_ernie {
namespace cuda {

constexpr int64_t kFp8Block = 128;

__host__ __device__ inline int64_t blocks_of(int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

// ---- fp8_quantise.cu: the recipe of csrc/cpu/quantise.h. T is float or __nv_bfloat16.

// x [M, K]; codes [M, K] E4M3; scales [M, blocks_of(K)].
template <class T>
cudaError_t quantise_rows(const T* x, int64_t M, int64_t K, bool power_of_two, uint8_t* codes,
                          float* scales, cudaStream_t stream);

// w [E, R, C]; codes [E, R, C] with scales [E, blocks_of(R), blocks_of(C)], or both with R and C
// exchanged if `transposed`: products want weights [K, N] as [N, K].
template <class T>
cudaError_t quantise_blocks(const T* w, int64_t E, int64_t R, int64_t C, bool power_of_two,
                            bool transposed, uint8_t* codes, float* scales, cudaStream_t stream);

// ---- fp8_gemm_sm90.cu: c [M, N] = a [M, K] * b [N, K]^T. T is float or __nv_bfloat16.

// a_scales [M, blocks_of(K)], b_scales [blocks_of(N), blocks_of(K)]. K is a multiple of 16.
template <class T>
cudaError_t fp8_gemm(const uint8_t* a, const float* a_scales, const uint8_t* b,
                     const float* b_scales, int64_t M, int64_t N, int64_t K, T* c,
                     cudaStream_t stream);

// ---- grouped_gemm_sm90.cu: rows offsets[e] to offsets[e + 1] of a and c belong to expert e.

// offsets [E + 1] in device memory, rising from 0 to M; groups may be empty. b [E, N, K], with
// b_scales [E, blocks_of(N), blocks_of(K)]. K is a multiple of 16 (FP8) or 8 (bf16).
template <class T>
cudaError_t grouped_gemm_fp8(const uint8_t* a, const float* a_scales, const uint8_t* b,
                             const float* b_scales, const int64_t* offsets, int64_t E, int64_t M,
                             int64_t N, int64_t K, T* c, cudaStream_t stream);
template <class T>
cudaError_t grouped_gemm_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b,
                              const int64_t* offsets, int64_t E, int64_t M, int64_t N, int64_t K,
                              T* c, cudaStream_t stream);

}  // namespace cuda
}  // namespace paddle_ernie
