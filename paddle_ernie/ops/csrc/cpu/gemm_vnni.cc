// Packing of operands for products of bf16 pairs. Either k runs along the rows of a matrix in
// memory (A as it is, B transposed), or down its columns (A transposed, B as it is). Blocks are
// walked in the order of memory: rows are often a multiple of 4 KB apart, and would evict each
// other from the L1 cache before a second look at them.
#include "gemm_vnni.h"

#ifdef PE_PAIRS
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#define PE_INLINE static inline __attribute__((always_inline))
#define PE_WIDTH 16
#define PE_LEVEL 2

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#pragma GCC target("prefer-vector-width=512")

namespace paddle_ernie {
namespace {

#include "vec.inc"
#include "fp8_block.inc"
#include "gemm_vnni_pairs.inc"

constexpr int64_t kMostVectors = kVnniBlockRows / W;  // side by side in a source

// Part of a matrix [rows][width], its rows `ld` apart; 128 at most in the direction of k.
struct Source {
  const float* x;
  int64_t ld, rows, width;
};

// ---- Scales ----

PE_INLINE vu row_magnitudes(const float* x, int64_t n) {
  vu amax = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) amax = larger(amax, magnitude(load(x + i)));
  if (i < n) amax = larger(amax, magnitude(load_n(x + i, n - i)));
  return amax;
}

PE_INLINE vu everywhere(vu bits) { return (vu){} + largest(bits); }

// The largest magnitude of a source that holds a NaN, without it.
static vu numbers_magnitudes(const Source& in) {
  vu amax = {};
  for (int64_t i = 0; i < in.rows; ++i) {
    for (int64_t n = 0; n < in.width; n += W) {
      const vu bits = magnitude(load_some(in.x + i * in.ld + n, in.width - n));
      amax = larger(amax, bits > kInfinityBits ? (vu){} : bits);
    }
  }
  return amax;
}

// One scale for the whole source, and a NaN in one column must not change the others.
static Coder shared_coder(const Source& in, bool power_of_two) {
  vu amax = {};
  for (int64_t i = 0; i < in.rows; ++i) {
    amax = larger(amax, row_magnitudes(in.x + i * in.ld, in.width));
  }
  if (largest(amax) <= kInfinityBits) return coder(everywhere(amax), power_of_two);
  Coder result = coder(everywhere(numbers_magnitudes(in)), power_of_two);
  result.ordinary = false;
  return result;
}

// A scale per column; by[v] has those of columns 16 v to 16 v + 15. Returns whether all are
// ordinary. (Of a column with a NaN no scale matters.)
static bool column_coders(const Source& in, bool power_of_two, Coder* by) {
  vu amax[kMostVectors] = {};
  const int64_t vectors = (in.width + W - 1) / W;
  for (int64_t i = 0; i < in.rows; i += 4) {
    for (int64_t v = 0; v < vectors; ++v) {
      const float* x = in.x + i * in.ld + v * W;
      const int64_t n = in.width - v * W;
      vu most = larger(amax[v], magnitude(load_some(x, n)));
      if (i + 1 < in.rows) most = larger(most, magnitude(load_some(x + in.ld, n)));
      if (i + 2 < in.rows) most = larger(most, magnitude(load_some(x + 2 * in.ld, n)));
      if (i + 3 < in.rows) most = larger(most, magnitude(load_some(x + 3 * in.ld, n)));
      amax[v] = most;
    }
  }
  bool ordinary = true;
  for (int64_t v = 0; v < vectors; ++v) {
    by[v] = coder(amax[v], power_of_two);
    ordinary &= by[v].ordinary;
  }
  return ordinary;
}

// ---- k down the columns ----

// Rows k and k + 1 of columns 16 v to 16 v + 15, zero where there are none.
template <Rounding rounding>
PE_INLINE __m512i down(const Source& in, int64_t k, int64_t v, const Coder& by) {
  const float* x = in.x + k * in.ld + v * W;
  const int64_t n = in.width - v * W;
  const vf even = k < in.rows ? load_some(x, n) : zero();
  const vf odd = k + 1 < in.rows ? load_some(x + in.ld, n) : zero();
  return as_pairs<rounding>(even, odd, by);
}

// B's block at panel `out`, the next panel `panel_stride` elements behind, `vectors` x 16 columns.
template <Rounding rounding>
static void panels_down(const Source& in, const Coder* by, int64_t vectors, uint16_t* out,
                        int64_t panel_stride) {
  for (int64_t k = 0; k < round_up(in.rows, kVnniK); k += 2) {
    for (int64_t v = 0; v < vectors; ++v) {
      _mm512_storeu_si512(out + v / 2 * panel_stride + v % 2 * 32 + k * kVnniPanel,
                          down<rounding>(in, k, v, by[v]));
    }
  }
}

// Transposed A's block, the next 16 rows of A `row_stride` elements behind.
template <Rounding rounding>
static void tiles_down(const Source& in, const Coder* by, uint16_t* out, int64_t row_stride) {
  for (int64_t k = 0; k < in.rows; k += kVnniK, out += kTileElements) {
    for (int64_t v = 0; v * W < in.width; ++v) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) rows[p] = down<rounding>(in, k + 2 * p, v, by[v]);
      transpose(rows);
      uint16_t* tile = out + v * row_stride;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + i * kVnniK, rows[i]);
    }
  }
}

// ---- k along the rows ----

// 32 of a row from k on.
template <Rounding rounding>
PE_INLINE __m512i along(const Source& in, int64_t row, int64_t k, const Coder& by) {
  const float* x = in.x + row * in.ld + k;
  return in_order<rounding>(load_some(x, in.width - k), load_some(x + W, in.width - k - W), by);
}

// Transposed B's block, as panels_down.
template <Rounding rounding>
static void panels_along(const Source& in, const Coder& by, int64_t vectors, uint16_t* out,
                         int64_t panel_stride) {
  for (int64_t v = 0; v < vectors; ++v) {
    uint16_t* columns = out + v / 2 * panel_stride + v % 2 * 32;
    for (int64_t k = 0; k < in.width; k += kVnniK) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const int64_t row = v * 16 + i;
        rows[i] = row < in.rows ? along<rounding>(in, row, k, by) : _mm512_setzero_si512();
      }
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        _mm512_storeu_si512(columns + (k + 2 * i) * kVnniPanel, rows[i]);
      }
    }
  }
}

// A row of A's block.
template <Rounding rounding>
PE_INLINE void tiles_along(const Source& in, int64_t row, const Coder& by, uint16_t* out) {
  for (int64_t k = 0; k < in.width; k += kVnniK, out += kTileElements) {
    _mm512_storeu_si512(out, along<rounding>(in, row, k, by));
  }
}

// ---- B ----

// Columns n to 16 vectors on of rows k to k + K.
static void pack_block(const PackB& job, int64_t k, int64_t K, int64_t n, int64_t vectors) {
  const int64_t columns = least_of(job.N - n, vectors * W);
  const Source in = job.transposed ? Source{job.w + n * job.ld + k, job.ld, columns, K}
                                   : Source{job.w + k * job.ld + n, job.ld, K, columns};
  const int64_t panel = n / kVnniPanel, panel_stride = round_up(job.K, kVnniK) * kVnniPanel;
  uint16_t* out =
      reinterpret_cast<uint16_t*>(job.data) + panel * panel_stride + k * kVnniPanel;
  Coder by[kMostVectors];
  if (job.format != Format::kFp8) {
    if (job.transposed) return panels_along<kToBf16>(in, by[0], vectors, out, panel_stride);
    return panels_down<kToBf16>(in, by, vectors, out, panel_stride);
  }
  bool ordinary;
  if (job.column_scales) {
    ordinary = column_coders(in, job.power_of_two_scales, by);
    // Columns that do not exist.
    for (int64_t v = (columns + W - 1) / W; v < vectors; ++v) by[v] = coder(vu{}, false);
  } else {
    const Coder shared = shared_coder(in, job.power_of_two_scales);
    for (int64_t v = 0; v < vectors; ++v) by[v] = shared;
    ordinary = shared.ordinary;
  }
  const int64_t blocks = round_up(job.K, kScaleBlock) / kScaleBlock;
  for (int64_t v = 0; v < vectors; ++v) {
    store(job.scales + ((panel + v / 2) * blocks + k / kScaleBlock) * kVnniPanel + v % 2 * W,
          by[v].scale);
  }
  if (job.transposed) {
    ordinary ? panels_along<kToCode>(in, by[0], vectors, out, panel_stride)
             : panels_along<kToOddCode>(in, by[0], vectors, out, panel_stride);
  } else {
    ordinary ? panels_down<kToCode>(in, by, vectors, out, panel_stride)
             : panels_down<kToOddCode>(in, by, vectors, out, panel_stride);
  }
}

// ---- A ----

static void pack_down(const PackA& job, const Source& in, uint16_t* out, int64_t row_stride,
                      float* scales) {
  Coder by[kMostVectors];
  if (job.format != Format::kFp8) return tiles_down<kToBf16>(in, by, out, row_stride);
  const bool ordinary = column_coders(in, job.power_of_two_scales, by);
  for (int64_t v = 0; v * W < in.width; ++v) store(scales + v * W, by[v].scale);
  ordinary ? tiles_down<kToCode>(in, by, out, row_stride)
           : tiles_down<kToOddCode>(in, by, out, row_stride);
}

// Some of 16 rows, each with its own scale.
template <Rounding rounding>
static void coded_rows(const Source& in, int64_t row, int64_t rows, const Coder& lanes,
                       uint16_t* out) {
  float scale[W], inverse[W];
  store(scale, lanes.scale);
  store(inverse, lanes.inverse);
  for (int64_t i = 0; i < rows; ++i) {
    tiles_along<rounding>(in, row + i, {set(scale[i]), set(inverse[i]), true}, out + i * kVnniK);
  }
}

static void pack_along(const PackA& job, const Source& in, uint16_t* out, int64_t row_stride,
                       float* scales) {
  for (int64_t row = 0; row < in.rows; row += kTileRows, out += row_stride) {
    const int64_t rows = least_of(in.rows - row, kTileRows);
    if (job.format != Format::kFp8) {
      for (int64_t i = 0; i < rows; ++i) {
        tiles_along<kToBf16>(in, row + i, Coder{}, out + i * kVnniK);
      }
      continue;
    }
    uint32_t most[W] = {};
    for (int64_t i = 0; i < rows; ++i) {
      most[i] = largest(row_magnitudes(in.x + (row + i) * in.ld, in.width));
    }
    vu amax;
    std::memcpy(&amax, most, sizeof(amax));
    const Coder by = coder(amax, job.power_of_two_scales);
    store(scales + row, by.scale);
    by.ordinary ? coded_rows<kToCode>(in, row, rows, by, out)
                : coded_rows<kToOddCode>(in, row, rows, by, out);
  }
}

}  // namespace

void vnni_pack_b(const PackB& job, int64_t begin, int64_t end, int64_t k_begin, int64_t k_end) {
  constexpr int64_t group = kScaleBlock / kVnniPanel;
  for (int64_t panel = begin; panel < end; panel += group) {
    for (int64_t k = k_begin; k < k_end; k += kScaleBlock) {
      pack_block(job, k, least_of(k_end - k, kScaleBlock), panel * kVnniPanel,
                 least_of(end - panel, group) * 2);
    }
  }
}

ABlock vnni_pack_a(const PackA& job, float* data, float* scales) {
  const int64_t row_stride = round_up(job.K, kVnniK) / kVnniK * kTileElements;
  for (int64_t k = 0; k < job.K; k += kScaleBlock) {
    const int64_t K = least_of(job.K - k, kScaleBlock);
    uint16_t* out = reinterpret_cast<uint16_t*>(data) + k / kVnniK * kTileElements;
    float* block_scales = scales + k / kScaleBlock * kVnniBlockRows;
    if (job.transposed) {
      pack_down(job, {job.a + k * job.lda, job.lda, K, job.rows}, out, row_stride, block_scales);
    } else {
      pack_along(job, {job.a + k, job.lda, job.rows, K}, out, row_stride, block_scales);
    }
  }
  return {data, row_stride, kTileElements, scales, kVnniBlockRows};
}

}  // namespace paddle_ernie

#pragma GCC pop_options
#endif
