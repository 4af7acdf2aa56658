// Operands of products of bf16 pairs, for processors with AVX-512 BF16:
//
//   B panel  [K / 2][32][2]               k pairs of 32 columns, K padded to 32
//   A block  [rows / 16][K / 32][16][32]  tiles of 16 rows and 32 k; rows beyond the last: anything
//
// FP8 operands are E4M3 values, which bf16 holds exactly.
#pragma once

#include "gemm_engine.h"

// GCC has the instructions of both since version 11.
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 11
#define PE_PAIRS 1
#endif

namespace paddle_ernie {

constexpr int64_t kVnniPanel = 32;
constexpr int64_t kVnniK = 32;                 // k per tile
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileElements = kTileRows * kVnniK;
constexpr int64_t kVnniBlockRows = 256;
constexpr int64_t kVnniBlockK = 512;

void vnni_pack_b(const PackB& job, int64_t begin, int64_t end, int64_t k_begin, int64_t k_end);
ABlock vnni_pack_a(const PackA& job, float* data, float* scales);

}  // namespace paddle_ernie
