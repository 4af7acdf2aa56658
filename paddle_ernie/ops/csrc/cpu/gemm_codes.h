// A packed FP8 B with one byte per value, for weights that are read more often than they are
// packed: products of few rows wait for memory. Their values become bf16 in the L1 cache, right
// before they are multiplied. With tiles and bf16 dot products; elsewhere such a B is packed as
// usual.
//
//   two panels of gemm_vnni.h   [2][K / 2][32][2] numbers of 16 bits
//   as codes                    [K / 2][2][64] bytes: of each 64 numbers 0 and 32, 1 and 33, ...
//
// so that memory is read from end to end. A code is E4M3 without NaN (whose column gets a NaN for a
// scale).
#pragma once

#include <cstdint>

#include "gemm_engine.h"

namespace paddle_ernie {

constexpr int64_t kCodePanels = 2;  // side by side
constexpr int64_t kCodeRow = 64;    // codes of a pair of k of one panel

// Whether B of this format can be packed so for the current isa().
bool has_codes(Format format);

// From a panel in the usual form, and its scales, which may change. `codes`: its first row's.
void encode_panel(const uint16_t* panel, int64_t K, float* scales, uint8_t* codes);

// For each of `count` products, which differ in A and C only: `b` and `panel_stride` are of codes.
void multiply_codes(const Engine& engine, const Product* products, int64_t count);

// For at most 16 rows, with tiles: decodes and multiplies in turns, so that memory never waits.
void amx_multiply_codes(const Product& product);

}  // namespace paddle_ernie
