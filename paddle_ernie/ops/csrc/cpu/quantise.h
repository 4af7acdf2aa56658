// Block-scaled FP8: E4M3 codes, one fp32 scale per 1 x 128 tile (activations) or 128 x 128 block
// (weights). The recipe, the same for every caller:
//
//   v = x rounded to bf16
//   scale = max|v| / 448 over the tile, 2^-126 at least, 1 if all are 0; with `power_of_two` raised
//           to the next power of two (so that its exponent byte, UE8M0, says it all)
//   code = v / scale to the nearest E4M3 number, ties to even, saturating at 448
//
// A NaN becomes code 0x7f and takes no part in the maximum. An infinity (also a value that bf16
// rounds to one) makes the scale infinite, and the whole tile reads back as NaN.
#pragma once

#include <cstdint>

namespace paddle_ernie {

constexpr int64_t kFp8Block = 128;  // as in DeepSeek-V3 and the checkpoints that carry such scales

inline int64_t fp8_blocks(int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

struct QuantiseKernels {
  void (*quantise_rows)(const float* x, int64_t K, bool power_of_two, uint8_t* codes,
                        float* scales, int64_t begin, int64_t end);
  void (*quantise_block)(const float* w, int64_t ld, int64_t rows, int64_t columns,
                         bool power_of_two, uint8_t* codes, float* scale);
  void (*swiglu_quantise)(const float* gate_up, int64_t F, bool power_of_two, uint8_t* codes,
                          float* scales, int64_t begin, int64_t end);
  void (*dequantise)(const uint8_t* codes, const float* scales, int64_t rows_per_scale, int64_t K,
                     float* y, int64_t begin, int64_t end);
  void (*to_e4m3)(const float* x, uint8_t* codes, int64_t n);
  void (*from_e4m3)(const uint8_t* codes, float* y, int64_t n);
  void (*round_bf16)(const float* x, float* y, int64_t n);
};

// x [T, K]; codes [T, K]; scales [T, fp8_blocks(K)].
void quantise_rows(const float* x, int64_t T, int64_t K, bool power_of_two, uint8_t* codes,
                   float* scales);

// w [E, R, C]; codes likewise; scales [E, fp8_blocks(R), fp8_blocks(C)].
void quantise_blocks(const float* w, int64_t E, int64_t R, int64_t C, bool power_of_two,
                     uint8_t* codes, float* scales);

// quantise_rows(swiglu(gate_up)) with the same bits: gate_up [T, 2F], codes [T, F].
void swiglu_quantise(const float* gate_up, int64_t T, int64_t F, bool power_of_two,
                     uint8_t* codes, float* scales);

// y [E, R, C] from codes and the scales of blocks of rows_per_block (1 or 128) x 128.
void dequantise(const uint8_t* codes, const float* scales, int64_t rows_per_block, int64_t E,
                int64_t R, int64_t C, float* y);

// Casts of n values without scales.
void to_e4m3(const float* x, int64_t n, uint8_t* codes);
void from_e4m3(const uint8_t* codes, int64_t n, float* y);
void round_to_bf16(const float* x, int64_t n, float* y);

}  // namespace paddle_ernie
