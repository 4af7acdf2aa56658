// Experts' products over contiguous groups of rows. Only the device knows the groups' sizes, so
// a fixed number of thread blocks walk over the tiles of all groups, each taking every n-th one.
#include "kernels.cuh"
#include "wgmma_tile.cuh"

namespace paddle_ernie {
namespace cuda {
namespace {

// Where one tile lies.
struct Tile {
  int64_t group, row, rows, column;  // rows: from this row to the end of its group
};

// Tiles of a group follow each other by columns: blocks that run together share rows of A.
class Tiles {
 public:
  __device__ Tiles(const int64_t* offsets, int64_t groups, int64_t N)
      : offsets_(offsets), groups_(groups), columns_((N + kTileN - 1) / kTileN) {}

  // The tile of that number; false after the last one. Numbers must rise from call to call.
  __device__ bool find(int64_t number, Tile* tile) {
    for (; group_ < groups_; ++group_) {
      const int64_t begin = offsets_[group_], rows = offsets_[group_ + 1] - begin;
      const int64_t count = (rows + kTileM - 1) / kTileM * columns_;
      if (number < before_ + count) {
        const int64_t row = (number - before_) / columns_ * kTileM;
        *tile = {group_, begin + row, rows - row, (number - before_) % columns_ * kTileN};
        return true;
      }
      before_ += count;
    }
    return false;
  }

 private:
  const int64_t* offsets_;
  int64_t groups_, columns_, group_ = 0, before_ = 0;
};

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    grouped_fp8_kernel(const uint8_t* a, const float* a_scales, const uint8_t* b,
                       const float* b_scales, const int64_t* offsets, int64_t E, int64_t N,
                       int64_t K, T* c) {
  extern __shared__ uint8_t shared[];
  const int64_t blocks = blocks_of(K);
  Tiles tiles(offsets, E, N);
  Tile at;
  for (int64_t number = blockIdx.x; tiles.find(number, &at); number += gridDim.x) {
    fp8_tile(Operand{a + at.row * K, at.rows}, a_scales + at.row * blocks,
             Operand{b + (at.group * N + at.column) * K, N - at.column},
             b_scales + (at.group * blocks_of(N) + at.column / kFp8Block) * blocks, K, shared,
             c + at.row * N + at.column, N);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    grouped_bf16_kernel(const __nv_bfloat16* a, const __nv_bfloat16* b, const int64_t* offsets,
                        int64_t E, int64_t N, int64_t K, T* c) {
  extern __shared__ uint8_t shared[];
  const auto bytes = [](const __nv_bfloat16* p) { return reinterpret_cast<const uint8_t*>(p); };
  Tiles tiles(offsets, E, N);
  Tile at;
  for (int64_t number = blockIdx.x; tiles.find(number, &at); number += gridDim.x) {
    bf16_tile(Operand{bytes(a + at.row * K), at.rows},
              Operand{bytes(b + (at.group * N + at.column) * K), N - at.column}, K, shared,
              c + at.row * N + at.column, N);
  }
}

// As many thread blocks as run at once, or fewer if there cannot be that many tiles.
cudaError_t grid_size(int64_t E, int64_t M, int64_t N, unsigned* blocks) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  const int64_t most = ((M + kTileM - 1) / kTileM + E) * ((N + kTileN - 1) / kTileN);
  *blocks = static_cast<unsigned>(most < 2 * processors ? most : 2 * processors);
  return error;
}

}  // namespace

template <class T>
cudaError_t grouped_gemm_fp8(const uint8_t* a, const float* a_scales, const uint8_t* b,
                             const float* b_scales, const int64_t* offsets, int64_t E, int64_t M,
                             int64_t N, int64_t K, T* c, cudaStream_t stream) {
  if (K % kChunkBytes) return cudaErrorInvalidValue;
  if (M == 0 || N == 0) return cudaSuccess;
  unsigned blocks = 0;
  cudaError_t error = grid_size(E, M, N, &blocks);
  if (error == cudaSuccess) error = allow_shared_memory(grouped_fp8_kernel<T>);
  if (error != cudaSuccess) return error;
  grouped_fp8_kernel<<<blocks, kThreads, kSharedBytes, stream>>>(a, a_scales, b, b_scales, offsets,
                                                                 E, N, K, c);
  return cudaGetLastError();
}

template <class T>
cudaError_t grouped_gemm_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b,
                              const int64_t* offsets, int64_t E, int64_t M, int64_t N, int64_t K,
                              T* c, cudaStream_t stream) {
  if (K * 2 % kChunkBytes) return cudaErrorInvalidValue;
  if (M == 0 || N == 0) return cudaSuccess;
  unsigned blocks = 0;
  cudaError_t error = grid_size(E, M, N, &blocks);
  if (error == cudaSuccess) error = allow_shared_memory(grouped_bf16_kernel<T>);
  if (error != cudaSuccess) return error;
  grouped_bf16_kernel<<<blocks, kThreads, kSharedBytes, stream>>>(a, b, offsets, E, N, K, c);
  return cudaGetLastError();
}

#define PE_INSTANTIATE(T)                                                                         \
  template cudaError_t grouped_gemm_fp8<T>(const uint8_t*, const float*, const uint8_t*,          \
                                           const float*, const int64_t*, int64_t, int64_t,        \
                                           int64_t, int64_t, T*, cudaStream_t);                   \
  template cudaError_t grouped_gemm_bf16<T>(const __nv_bfloat16*, const __nv_bfloat16*,           \
                                            const int64_t*, int64_t, int64_t, int64_t, int64_t,   \
                                            T*, cudaStream_t);
PE_INSTANTIATE(float)
PE_INSTANTIATE(__nv_bfloat16)

}  // namespace cuda
}  // namespace paddle_ernie
