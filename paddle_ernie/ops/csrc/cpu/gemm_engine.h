// What gemm.cc asks of the code for one way to multiply (fp32 vectors, bf16 dot products, tiles).
//
//   B, packed once:  panels of `panel` columns, each [K padded to k_unit][panel] (the engine's own
//                    order inside), zero beyond K and N; FP8: then scales [panels][K / 128][panel]
//   A, per block:    some rows and at most k_block of K, rounded into scratch or read in place
//   C:               written block by block; a later K block goes on from the sums of the last one
//
// Rounding C between K blocks changes nothing, because sums are fp32 all along.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gemm.h"

namespace paddle_ernie {

constexpr int64_t kScaleBlock = 128;  // FP8: elements of K that share a scale

struct PackB {
  const float* w;
  int64_t K, N, ld;
  bool transposed;  // B[k][n] is w[n * ld + k]
  Format format;
  bool power_of_two_scales;
  bool column_scales;  // FP8: a scale per column and 128 of K, not per 128 x 128; not transposed
  uint8_t* data;
  float* scales;
};

struct PackA {
  const float* a;  // at the first row and the first k of the block
  int64_t lda;
  bool transposed;  // A[m][k] is a[k * lda + m]
  int64_t rows, K;
  Format format;
  bool power_of_two_scales;
};

// A block of A as `multiply` reads it; what the strides count is the engine's affair.
struct ABlock {
  const void* data;
  int64_t row_stride, k_stride;
  const float* scales;  // FP8: [K / 128][scale_stride]
  int64_t scale_stride;
};

// C[rows, columns] (+)= A[rows, K] B[K, columns]
struct Product {
  ABlock a;
  int64_t rows, K, columns;
  const uint8_t* b;        // first panel, at the first k of the block
  int64_t panel_stride;    // bytes from panel to panel
  const float* b_scales;   // FP8: likewise
  int64_t b_scale_stride;  // floats from panel to panel
  float b_factor = 1.0f;   // FP8: a power of two, by which the values in `b` are too small
  float* c;
  int64_t ldc;
  bool accumulate;
};

struct Engine {
  int64_t panel, k_unit, element_bytes;
  int64_t row_unit;   // blocks of A are best a multiple of this high
  int64_t block_rows; // highest block of A
  int64_t k_block;    // longest block of A, a multiple of kScaleBlock
  // Packs rows [k_begin, k_end) of panels [begin, end). k_begin is a multiple of kScaleBlock, and
  // for FP8 `begin` is at a multiple of kScaleBlock columns.
  void (*pack_b)(const PackB&, int64_t begin, int64_t end, int64_t k_begin, int64_t k_end);
  // `data` holds block_rows x k_block elements of 4 bytes and some padding (see kPadding), `scales`
  // block_rows x k_block / 128 floats.
  ABlock (*pack_a)(const PackA&, float* data, float* scales);
  void (*multiply)(const Product&);
};

constexpr int64_t kPadding = 32;  // A scratch: floats for each row, and rows, beyond the block

// fp32 vectors; bf16 and FP8 operands are rounded and then kept as fp32.
const Engine& fp32_engine();
// Pairs of bf16: a dot product instruction, or tiles.
const Engine& bf16_engine();
const Engine& amx_engine();

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace paddle_ernie
