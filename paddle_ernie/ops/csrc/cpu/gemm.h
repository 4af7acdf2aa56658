// Matrix products C[M, N] = A[M, K] * B[K, N] with B packed beforehand.
//
// Every element of C adds its products in an order that depends on K only: not on M, on the rows
// beside it, on the position of a row in a tile, or on threads. FP8 sums 128 of K at a time and
// adds these sums, each times its two scales, with rising K.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paddle_ernie {

// How operands are rounded before they are multiplied; sums are fp32 always.
enum class Format {
  kFp32 = 0,
  kBf16 = 1,  // nearest, ties to even
  kFp8 = 2,   // bf16, then E4M3 in blocks along K: A 1 x 128, B 128 x 128 (see fp8_block.inc)
};

// Room for B in its packed form. The layout depends on isa(). `codes`: by pack_codes.
size_t packed_bytes(Format format, int64_t K, int64_t N, bool codes = false);

// Whether this is a B [K, N] that was packed in this format for the current isa().
bool packed_for(Format format, int64_t K, int64_t N, const void* packed);

// B[k][n] is w[k * ld + n], or w[n * ld + k] if `transposed`. `column_scales`: FP8 scales per
// column and 128 of K, for a B that is an activation or a gradient; not for a transposed one.
void pack_b(Format format, const float* w, int64_t K, int64_t N, int64_t ld, bool transposed,
            bool power_of_two_scales, void* packed, bool column_scales = false);

// The same for `count` weights [K, N] (or [N, K] if `transposed`) one after the other in memory,
// into `packed` one after the other.
void pack_b_stack(Format format, const float* w, int64_t count, int64_t K, int64_t N,
                  bool transposed, bool power_of_two_scales, void* packed);

// Weights [K, N] for gemm_pieces.h only: FP8 takes a byte per value where gemm_codes.h has code for
// it, and else, like any other format, what pack_b_stack makes.
void pack_codes(Format format, const float* w, int64_t count, int64_t K, int64_t N,
                bool power_of_two_scales, void* packed);

// A[m][k] is a[m * lda + k], or a[k * lda + m] if `transposed`. `accumulate`: C += instead of C =.
// K may be 0 (C = 0).
void gemm(Format format, const float* a, int64_t lda, bool transposed, const void* packed_b,
          int64_t M, int64_t N, int64_t K, bool power_of_two_scales, float* c, int64_t ldc,
          bool accumulate);

// Rows of `a` [sum of counts, K], sorted by group, times their group's B; group e has counts[e]
// rows and its B is packed at packed_b + e * packed_bytes(format, K, N).
void grouped_gemm(Format format, const float* a, const int64_t* counts, int64_t groups,
                  const void* packed_b, int64_t N, int64_t K, bool power_of_two_scales, float* c);

// dw[e] [I, O] = x_e^T dy_e for each group's rows of x [.., I] and dy [.., O]; 0 for an empty one.
// FP8 scales are per column and 128 rows of the group, on both sides.
void weight_gradients(Format format, const float* x, const float* dy, const int64_t* counts,
                      int64_t groups, int64_t I, int64_t O, bool power_of_two_scales, float* dw);

}  // namespace paddle_ernie
