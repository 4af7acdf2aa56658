// Block-scaled FP8 product: a thread block per 64 x 128 tile of C.
#include "kernels.cuh"
#include "wgmma_tile.cuh"

namespace paddle_ernie {
namespace cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    fp8_gemm_kernel(const uint8_t* a, const float* a_scales, const uint8_t* b,
                    const float* b_scales, int64_t M, int64_t N, int64_t K, T* c) {
  extern __shared__ uint8_t shared[];
  const int64_t m = blockIdx.x * int64_t{kTileM}, n = blockIdx.y * int64_t{kTileN};
  fp8_tile(Operand{a + m * K, M - m}, a_scales + m * blocks_of(K), Operand{b + n * K, N - n},
           b_scales + blockIdx.y * blocks_of(K), K, shared, c + m * N + n, N);
}

}  // namespace

template <class T>
cudaError_t fp8_gemm(const uint8_t* a, const float* a_scales, const uint8_t* b,
                     const float* b_scales, int64_t M, int64_t N, int64_t K, T* c,
                     cudaStream_t stream) {
  constexpr int64_t kGridLimit = 65535;  // of the second dimension
  const int64_t rows = (M + kTileM - 1) / kTileM, columns = (N + kTileN - 1) / kTileN;
  if (K % kChunkBytes || columns > kGridLimit) return cudaErrorInvalidValue;
  if (M == 0 || N == 0) return cudaSuccess;
  const cudaError_t error = allow_shared_memory(fp8_gemm_kernel<T>);
  if (error != cudaSuccess) return error;
  fp8_gemm_kernel<<<dim3(rows, columns), kThreads, kSharedBytes, stream>>>(a, a_scales, b, b_scales,
                                                                           M, N, K, c);
  return cudaGetLastError();
}

#define PE_INSTANTIATE(T)                                                                         \
  template cudaError_t fp8_gemm<T>(const uint8_t*, const float*, const uint8_t*, const float*,    \
                                   int64_t, int64_t, int64_t, T*, cudaStream_t);
PE_INSTANTIATE(float)
PE_INSTANTIATE(__nv_bfloat16)

}  // namespace cuda
}  // namespace paddle_ernie
