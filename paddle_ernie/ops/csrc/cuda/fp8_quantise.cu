// FP8 quantisation: 1 x 128 tiles of rows by one warp each, 128 x 128 blocks by one thread block.
// Bits equal those of csrc/cpu: bf16 first, true divisions, nearest even, saturating.
#include <cuda_fp8.h>

#include "kernels.cuh"

namespace paddle_ernie {
namespace cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kPerLane = kFp8Block / kWarp;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__device__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
__device__ float rounded(__nv_bfloat16 x) { return __bfloat162float(x); }

// fmaxf returns the number where the other one is NaN.
__device__ float amax(float largest, float x) { return fmaxf(largest, fabsf(x)); }

__device__ float warp_max(float x) {
  for (int step = kWarp / 2; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

__device__ float scale_of(float largest, bool power_of_two) {
  if (largest == 0.0f) return 1.0f;
  const float scale = fmaxf(__fdiv_rn(largest, 448.0f), 1.17549435e-38f);
  return power_of_two ? __uint_as_float((__float_as_uint(scale) + 0x7fffffu) & 0xff800000u) : scale;
}

__device__ uint8_t code_of(float x, float scale) {
  const float quotient = __fdiv_rn(x, scale);
  if (isnan(quotient)) return 0x7f;
  return __nv_cvt_float_to_fp8(quotient, __NV_SATFINITE, __NV_E4M3);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const T* x, int64_t M, int64_t K, bool power_of_two, uint8_t* codes,
                float* scales) {
  const int64_t tiles = blocks_of(K), lane = threadIdx.x % kWarp;
  const int64_t tile = blockIdx.x * int64_t{kWarps} + threadIdx.x / kWarp;
  if (tile >= M * tiles) return;  // a whole warp
  const int64_t row = tile / tiles, first = tile % tiles * kFp8Block;
  float values[kPerLane], largest = 0.0f;
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t k = first + i * kWarp + lane;
    values[i] = k < K ? rounded(x[row * K + k]) : 0.0f;
    largest = amax(largest, values[i]);
  }
  const float scale = scale_of(warp_max(largest), power_of_two);
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t k = first + i * kWarp + lane;
    if (k < K) codes[row * K + k] = code_of(values[i], scale);
  }
  if (lane == 0) scales[tile] = scale;
}

// Codes pass through shared memory, so that they leave in either order in whole lines.
template <class T>
__global__ void __launch_bounds__(kThreads)
    blocks_kernel(const T* w, int64_t R, int64_t C, bool power_of_two, bool transposed,
                  uint8_t* codes, float* scales) {
  __shared__ uint8_t tile[kFp8Block][kFp8Block + 4];  // + 4: columns fall into different banks
  __shared__ float largest_of[kWarps];
  const int64_t matrix = blockIdx.z * R * C;
  const int64_t top = blockIdx.y * kFp8Block, left = blockIdx.x * kFp8Block;
  const auto value = [&](int64_t i, int64_t j) {
    const int64_t row = top + i, column = left + j;
    return row < R && column < C ? rounded(w[matrix + row * C + column]) : 0.0f;
  };
  float largest = 0.0f;
  for (int at = threadIdx.x; at < kFp8Block * kFp8Block; at += kThreads) {
    largest = amax(largest, value(at / kFp8Block, at % kFp8Block));
  }
  largest = warp_max(largest);
  if (threadIdx.x % kWarp == 0) largest_of[threadIdx.x / kWarp] = largest;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, largest_of[i]);
  const float scale = scale_of(largest, power_of_two);
  for (int at = threadIdx.x; at < kFp8Block * kFp8Block; at += kThreads) {
    const int64_t i = at / kFp8Block, j = at % kFp8Block;
    tile[i][j] = code_of(value(i, j), scale);  // read again: from the cache
  }
  __syncthreads();
  const int64_t rows = transposed ? C : R, columns = transposed ? R : C;
  const int64_t first_row = transposed ? left : top, first_column = transposed ? top : left;
  for (int at = threadIdx.x; at < kFp8Block * kFp8Block; at += kThreads) {
    const int64_t i = at / kFp8Block, j = at % kFp8Block;
    if (first_row + i >= rows || first_column + j >= columns) continue;
    const uint8_t code = transposed ? tile[j][i] : tile[i][j];
    codes[matrix + (first_row + i) * columns + first_column + j] = code;
  }
  if (threadIdx.x == 0) {
    const int64_t across = blocks_of(columns);
    scales[blockIdx.z * blocks_of(rows) * across + first_row / kFp8Block * across +
           first_column / kFp8Block] = scale;
  }
}

}  // namespace

template <class T>
cudaError_t quantise_rows(const T* x, int64_t M, int64_t K, bool power_of_two, uint8_t* codes,
                          float* scales, cudaStream_t stream) {
  const int64_t blocks = (M * blocks_of(K) + kWarps - 1) / kWarps;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  rows_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, M, K, power_of_two, codes,
                                                                      scales);
  return cudaGetLastError();
}

template <class T>
cudaError_t quantise_blocks(const T* w, int64_t E, int64_t R, int64_t C, bool power_of_two,
                            bool transposed, uint8_t* codes, float* scales, cudaStream_t stream) {
  constexpr int64_t kGridLimit = 65535;  // of the second and third dimension
  if (E * R * C == 0) return cudaSuccess;
  if (E > kGridLimit || blocks_of(R) > kGridLimit) return cudaErrorInvalidValue;
  const dim3 grid(blocks_of(C), blocks_of(R), E);
  blocks_kernel<<<grid, kThreads, 0, stream>>>(w, R, C, power_of_two, transposed, codes, scales);
  return cudaGetLastError();
}

#define PE_INSTANTIATE(T)                                                                         \
  template cudaError_t quantise_rows<T>(const T*, int64_t, int64_t, bool, uint8_t*, float*,       \
                                        cudaStream_t);                                            \
  template cudaError_t quantise_blocks<T>(const T*, int64_t, int64_t, int64_t, bool, bool,        \
                                          uint8_t*, float*, cudaStream_t);
PE_INSTANTIATE(float)
PE_INSTANTIATE(__nv_bfloat16)

}  // namespace cuda
}  // namespace paddle_ernie
