#include "quantise.h"

#include <algorithm>

#include "isa.h"
#include "parallel.h"
#include "pieces.h"

#define PE_KERNEL_FILE "quantise_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {

void quantise_rows(const float* x, int64_t T, int64_t K, bool power_of_two, uint8_t* codes,
                   float* scales) {
  const QuantiseKernels& kernels = PE_KERNELS(quantise_kernels);
  parallel_for(T, rows_of_bytes(kPieceBytes, K * 4), [&](int64_t begin, int64_t end) {
    kernels.quantise_rows(x, K, power_of_two, codes, scales, begin, end);
  });
}

void quantise_blocks(const float* w, int64_t E, int64_t R, int64_t C, bool power_of_two,
                     uint8_t* codes, float* scales) {
  const QuantiseKernels& kernels = PE_KERNELS(quantise_kernels);
  const int64_t down = fp8_blocks(R), across = fp8_blocks(C);
  parallel_for(E * down * across, 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block / across % down * kFp8Block, column = block % across * kFp8Block;
      const int64_t at = (block / across / down * R + row) * C + column;
      kernels.quantise_block(w + at, C, std::min(kFp8Block, R - row),
                             std::min(kFp8Block, C - column), power_of_two, codes + at,
                             scales + block);
    }
  });
}

void swiglu_quantise(const float* gate_up, int64_t T, int64_t F, bool power_of_two,
                     uint8_t* codes, float* scales) {
  const QuantiseKernels& kernels = PE_KERNELS(quantise_kernels);
  parallel_for(T, rows_of_bytes(kPieceBytes, F * 8), [&](int64_t begin, int64_t end) {
    kernels.swiglu_quantise(gate_up, F, power_of_two, codes, scales, begin, end);
  });
}

void dequantise(const uint8_t* codes, const float* scales, int64_t rows_per_block, int64_t E,
                int64_t R, int64_t C, float* y) {
  const QuantiseKernels& kernels = PE_KERNELS(quantise_kernels);
  const int64_t grain = rows_of_bytes(kPieceBytes, C * 4), pieces = (R + grain - 1) / grain;
  const int64_t scales_each = (R + rows_per_block - 1) / rows_per_block * fp8_blocks(C);
  parallel_for(E * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t e = piece / pieces, row = piece % pieces * grain;
      kernels.dequantise(codes + e * R * C, scales + e * scales_each, rows_per_block, C,
                         y + e * R * C, row, std::min(R, row + grain));
    }
  });
}

void to_e4m3(const float* x, int64_t n, uint8_t* codes) {
  const QuantiseKernels& kernels = PE_KERNELS(quantise_kernels);
  parallel_for(n, kPieceBytes / 4, [&](int64_t begin, int64_t end) {
    kernels.to_e4m3(x + begin, codes + begin, end - begin);
  });
}

void from_e4m3(const uint8_t* codes, int64_t n, float* y) {
  const QuantiseKernels& kernels = PE_KERNELS(quantise_kernels);
  parallel_for(n, kPieceBytes / 4, [&](int64_t begin, int64_t end) {
    kernels.from_e4m3(codes + begin, y + begin, end - begin);
  });
}

void round_to_bf16(const float* x, int64_t n, float* y) {
  const QuantiseKernels& kernels = PE_KERNELS(quantise_kernels);
  parallel_for(n, kPieceBytes / 4, [&](int64_t begin, int64_t end) {
    kernels.round_bf16(x + begin, y + begin, end - begin);
  });
}

}  // namespace paddle_ernie
