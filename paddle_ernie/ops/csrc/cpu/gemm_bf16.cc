// Products of bf16 pairs with the dot product instruction of AVX-512 BF16 (see gemm_vnni.h).
#include "gemm_vnni.h"

#ifdef PE_PAIRS
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#pragma GCC target("prefer-vector-width=512")
#endif

namespace paddle_ernie {

#ifdef PE_PAIRS
namespace {

constexpr int kHeight = 8;  // rows of a register tile: 8 x 32 floats are 16 vectors

inline __mmask16 lanes(int64_t n) {
  return n >= 16 ? 0xffff : n > 0 ? static_cast<__mmask16>((1 << n) - 1) : 0;
}

// acc += A[R, steps * 32] B[steps * 32, P panels]
template <int R, int P>
inline __attribute__((always_inline)) void accumulate(const uint16_t* a, const uint16_t* b,
                                                      int64_t panel_stride, int64_t steps,
                                                      __m512 (&acc)[R][2 * P]) {
  for (int64_t step = 0; step < steps; ++step, a += kTileElements) {
    for (int64_t pair = 0; pair < kVnniK / 2; ++pair, b += 2 * kVnniPanel) {
      __m512bh columns[2 * P];
#pragma GCC unroll 8
      for (int v = 0; v < 2 * P; ++v) {
        columns[v] = (__m512bh)_mm512_loadu_si512(b + v / 2 * panel_stride + v % 2 * 32);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int both;
        __builtin_memcpy(&both, a + r * kVnniK + 2 * pair, sizeof(both));
        const __m512bh row = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 8
        for (int v = 0; v < 2 * P; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], row, columns[v]);
      }
    }
  }
}

template <int R, int P>
void tile(const Product& job, int64_t row, int64_t panel) {
  const uint16_t* a = static_cast<const uint16_t*>(job.a.data) +
                      row / kTileRows * job.a.row_stride + row % kTileRows * kVnniK;
  const uint16_t* b = reinterpret_cast<const uint16_t*>(job.b + panel * job.panel_stride);
  float* c = job.c + row * job.ldc + panel * kVnniPanel;
  const int64_t columns = job.columns - panel * kVnniPanel;
  const int64_t steps = round_up(job.K, kVnniK) / kVnniK;
  const int64_t stride = job.b_scales ? kScaleBlock / kVnniK : steps;
  bool sums = job.accumulate;
  for (int64_t step = 0; step < steps; step += stride) {
    __m512 acc[R][2 * P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < 2 * P; ++v) {
        const __mmask16 mask = sums && !job.b_scales ? lanes(columns - 16 * v) : 0;
        acc[r][v] = _mm512_maskz_loadu_ps(mask, c + r * job.ldc + 16 * v);
      }
    }
    accumulate<R, P>(a + step * kTileElements, b + step * kVnniK * kVnniPanel, job.panel_stride / 2,
                     steps - step < stride ? steps - step : stride, acc);
    const int64_t block = step * kVnniK / kScaleBlock;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < 2 * P; ++v) {
        const __mmask16 mask = lanes(columns - 16 * v);
        float* to = c + r * job.ldc + 16 * v;
        __m512 result = acc[r][v];
        if (job.b_scales) {
          const float* scale = job.b_scales + (panel + v / 2) * job.b_scale_stride +
                               block * kVnniPanel + v % 2 * 16;
          const __m512 both =
              _mm512_mul_ps(_mm512_set1_ps(job.a.scales[block * job.a.scale_stride + row + r]),
                            _mm512_loadu_ps(scale));
          const __m512 before = _mm512_maskz_loadu_ps(sums ? mask : 0, to);
          result = _mm512_fmadd_ps(_mm512_mul_ps(result, _mm512_set1_ps(job.b_factor)), both,
                                   before);
        }
        _mm512_mask_storeu_ps(to, mask, result);
      }
    }
    sums = true;
  }
}

template <int R>
void some_rows(const Product& job, int64_t row, int64_t rows, int64_t panel) {
  if (rows == R) return tile<R, 1>(job, row, panel);
  if constexpr (R > 1) some_rows<R - 1>(job, row, rows, panel);
}

void multiply(const Product& job) {
  const int64_t panels = (job.columns + kVnniPanel - 1) / kVnniPanel;
  int64_t panel = 0;
  if (job.rows <= 2) {  // so few rows have too few chains of products to fill the pipeline
    for (; panel + 4 <= panels; panel += 4) {
      if (job.rows == 1) tile<1, 4>(job, 0, panel);
      if (job.rows == 2) tile<2, 4>(job, 0, panel);
    }
  }
  for (; panel < panels; ++panel) {
    for (int64_t row = 0; row < job.rows; row += kHeight) {
      some_rows<kHeight>(job, row, job.rows - row < kHeight ? job.rows - row : kHeight, panel);
    }
  }
}

const Engine engine = {kVnniPanel,   kVnniK,       2,           kHeight,  kVnniBlockRows,
                       kVnniBlockK,  &vnni_pack_b, &vnni_pack_a, &multiply};

}  // namespace

const Engine& bf16_engine() { return engine; }
#else
const Engine& bf16_engine() { return fp32_engine(); }
#endif

}  // namespace paddle_ernie

#ifdef PE_PAIRS
#pragma GCC pop_options
#endif
