// One 64 x 128 tile of a product on Hopper's tensor cores, computed by one warpgroup.
//
//   a [M, K], b [N, K]  --cp.async, 4 stages-->  shared memory, 128 bytes of K at a time
//                       --wgmma-->  registers    FP8: scaled and added up per 128 values of K
//
// A stage's rows are 128 bytes, one K block: 128 FP8 or 64 bf16 values. Their sixteen-byte chunks
// are stored at chunk ^ (row % 8), the 128-byte swizzle that wgmma's descriptors name; stages begin
// at multiples of 1,024 bytes for it. Two thread blocks fit on a multiprocessor: one multiplies
// while the other scales.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "hopper.cuh"
#include "kernels.cuh"

namespace paddle_ernie {
namespace cuda {

constexpr int kTileM = 64, kTileN = 128;
constexpr int kThreads = 128;  // a warpgroup
constexpr int kStages = 4;
constexpr int kRowBytes = 128, kChunkBytes = 16, kStepBytes = 32;
constexpr int kSwizzleBytes = 1024;  // eight rows
constexpr int kChunks = kRowBytes / kChunkBytes;
constexpr int kStageBytes = (kTileM + kTileN) * kRowBytes;
constexpr int kSharedBytes = kStages * kStageBytes + kSwizzleBytes;  // the first is aligned up
static_assert(kAccumulators * kThreads == kTileM * kTileN, "");

// The rows of a matrix from a tile's first one on.
struct Operand {
  const uint8_t* data;
  int64_t rows;  // those further down read as zero
};

// Starts copying kRows rows of one K block; what lies outside the matrix becomes zero.
template <int kRows>
__device__ void copy_rows(const Operand& operand, int64_t row_bytes, int64_t first_byte,
                          uint32_t to) {
#pragma unroll
  for (int at = threadIdx.x; at < kRows * kChunks; at += kThreads) {
    const int row = at / kChunks, chunk = at % kChunks;
    const int64_t byte = first_byte + chunk * kChunkBytes;
    const bool inside = row < operand.rows && byte < row_bytes;
    copy_16(to + row * kRowBytes + (chunk ^ (row % 8)) * kChunkBytes,
            operand.data + (inside ? row * row_bytes + byte : 0), inside);
  }
}

// Describes rows of 128 bytes at `address`, K-major, 128-byte swizzle. (The leading offset, bits 16
// to 29, has no meaning in this layout.)
__device__ inline uint64_t descriptor(uint32_t address) {
  constexpr uint64_t kEightRows = kSwizzleBytes >> 4, kSwizzle128 = 1;
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 | kEightRows << 32 |
         kSwizzle128 << 62;
}

// Runs over K. After every K block it calls each(block), with that block's product alone in d if
// `apart`, else the sum of all so far. All threads of the block take part.
template <class Format, bool apart, class Each>
__device__ void multiply_tile(const Operand& a, const Operand& b, int64_t K, uint8_t* shared,
                              float (&d)[kAccumulators], const Each& each) {
  const uint32_t end = shared_address(shared) + kSwizzleBytes - 1, base = end - end % kSwizzleBytes;
  const int64_t row_bytes = K * Format::kBytes, blocks = (row_bytes + kRowBytes - 1) / kRowBytes;
  const auto stage_of = [&](int64_t block) {
    return base + static_cast<uint32_t>(block % kStages) * kStageBytes;
  };
  const auto fetch = [&](int64_t block) {
    if (block < blocks) {
      copy_rows<kTileM>(a, row_bytes, block * kRowBytes, stage_of(block));
      copy_rows<kTileN>(b, row_bytes, block * kRowBytes, stage_of(block) + kTileM * kRowBytes);
    }
    commit_copies();  // after the last block an empty group: the count of pending ones holds
  };
  __syncthreads();  // all threads have done with the tile before
  for (int64_t block = 0; block < kStages - 1; ++block) fetch(block);
  for (int64_t block = 0; block < blocks; ++block) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // everyone's part of this block is there, and the block before has been read
    fetch(block + kStages - 1);
    const uint32_t at_a = stage_of(block), at_b = at_a + kTileM * kRowBytes;
    begin_products(d);
#pragma unroll
    for (int byte = 0; byte < kRowBytes; byte += kStepBytes) {
      const bool first = byte == 0 && (apart || block == 0);
      multiply(Format{}, d, descriptor(at_a + byte), descriptor(at_b + byte), !first);
    }
    finish_products(d);
    each(block);
  }
  wait_for_copies<0>();
}

// Accumulator i of this thread is element (row, column) of the tile: a warp has sixteen rows, four
// threads share a row, each with two neighbours in every eight columns, in rows eight apart.
__device__ inline int tile_row(int i) {
  return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 4 / 2 * 8;
}
__device__ inline int tile_column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

__device__ inline void put(float* to, float x) { *to = x; }
__device__ inline void put(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// c: the tile's first element.
template <class T>
__device__ void store_tile(const float (&d)[kAccumulators], T* c, int64_t ld, int64_t rows,
                           int64_t columns) {
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) {
    const int row = tile_row(i), column = tile_column(i);
    if (row < rows && column < columns) put(c + row * ld + column, d[i]);
  }
}

// An FP8 tile. a_scales: those of the tile's first row; b_scales: those of its 128 columns.
template <class T>
__device__ void fp8_tile(const Operand& a, const float* a_scales, const Operand& b,
                         const float* b_scales, int64_t K, uint8_t* shared, T* c, int64_t ldc) {
  static_assert(kTileN == kFp8Block && kRowBytes == kFp8Block, "one scale of B per K block");
  const int64_t blocks = blocks_of(K);
  const int row = tile_row(0), below = row + 8;
  float sums[kAccumulators] = {}, d[kAccumulators];
  multiply_tile<Fp8, true>(a, b, K, shared, d, [&](int64_t block) {
    const float b_scale = b_scales[block];
    const float upper = row < a.rows ? a_scales[row * blocks + block] * b_scale : 0.0f;
    const float lower = below < a.rows ? a_scales[below * blocks + block] * b_scale : 0.0f;
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
      sums[i] = __fmaf_rn(d[i], i % 4 < 2 ? upper : lower, sums[i]);
    }
  });
  store_tile(sums, c, ldc, a.rows, b.rows);
}

template <class T>
__device__ void bf16_tile(const Operand& a, const Operand& b, int64_t K, uint8_t* shared, T* c,
                          int64_t ldc) {
  float sums[kAccumulators] = {};
  multiply_tile<Bf16, false>(a, b, K, shared, sums, [](int64_t) {});
  store_tile(sums, c, ldc, a.rows, b.rows);
}

// More shared memory than the 48 KB a kernel gets unasked.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel* kernel) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}

}  // namespace cuda
}  // namespace paddle_ernie
