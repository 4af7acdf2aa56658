// Products of bf16 pairs with the tile registers of AMX (see gemm_vnni.h).
//
// Tiles hold 16 x 16 floats of C, 16 rows x 32 k of A, or 16 k pairs x 16 columns of B. Sums stay
// in tiles over a block of K, so each is one chain in the hardware's order of k.
#include "gemm_codes.h"
#include "gemm_vnni.h"

#ifdef PE_PAIRS
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq")
#pragma GCC target("prefer-vector-width=512")
#endif

namespace paddle_ernie {

#ifdef PE_PAIRS
namespace {

#include "gemm_codes.inc"

// Instructions by name: the compiler's own tile functions tell it nothing about memory.
#define PE_TILE_CLEAR(t) asm volatile("tilezero %%tmm" #t ::)
#define PE_TILE_LOAD(t, base, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(base), "r"((int64_t)(stride)) : "memory")
#define PE_TILE_STORE(t, base, stride) \
  asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(base), "r"((int64_t)(stride)) : "memory")
#define PE_TILE_DOT(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr int64_t kAStride = 64;       // bytes from row to row of a tile of A
constexpr int64_t kBStride = 128;      // of B
constexpr int64_t kBStep = kVnniK * kVnniPanel;
constexpr int64_t kGroupBytes = 512 << 10;  // of B: panels that stay in L2 while rows pass
constexpr int64_t kSums = 32 * 32;     // of a tile loop

// How the four tiles of C lie: 2 x 2, or side by side for few rows.
enum Shape { kSquare, kWide };

constexpr int64_t height(Shape shape) { return shape == kSquare ? 32 : 16; }
constexpr int64_t width(Shape shape) { return shape == kSquare ? 32 : 64; }

template <Shape shape>
inline __attribute__((always_inline)) void load_sums(const float* c, int64_t ldc) {
  PE_TILE_LOAD(0, c, ldc * 4);
  PE_TILE_LOAD(1, c + 16, ldc * 4);
  if (shape == kSquare) {
    PE_TILE_LOAD(2, c + 16 * ldc, ldc * 4);
    PE_TILE_LOAD(3, c + 16 * ldc + 16, ldc * 4);
  } else {
    PE_TILE_LOAD(2, c + 32, ldc * 4);
    PE_TILE_LOAD(3, c + 48, ldc * 4);
  }
}

template <Shape shape>
inline __attribute__((always_inline)) void store_sums(float* c, int64_t ldc) {
  PE_TILE_STORE(0, c, ldc * 4);
  PE_TILE_STORE(1, c + 16, ldc * 4);
  if (shape == kSquare) {
    PE_TILE_STORE(2, c + 16 * ldc, ldc * 4);
    PE_TILE_STORE(3, c + 16 * ldc + 16, ldc * 4);
  } else {
    PE_TILE_STORE(2, c + 32, ldc * 4);
    PE_TILE_STORE(3, c + 48, ldc * 4);
  }
}

inline __attribute__((always_inline)) void clear_sums() {
  PE_TILE_CLEAR(0);
  PE_TILE_CLEAR(1);
  PE_TILE_CLEAR(2);
  PE_TILE_CLEAR(3);
}

// Tiles 0 to 3 += A B over `steps` times 32 of K. `a2`: the second tile of rows; `b2`: the second
// panel.
template <Shape shape>
inline __attribute__((always_inline)) void accumulate(const uint16_t* a, const uint16_t* a2,
                                                      const uint16_t* b, const uint16_t* b2,
                                                      int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    PE_TILE_LOAD(4, a, kAStride);
    PE_TILE_LOAD(6, b, kBStride);
    PE_TILE_LOAD(7, b + 32, kBStride);
    PE_TILE_DOT(0, 4, 6);
    PE_TILE_DOT(1, 4, 7);
    if (shape == kSquare) {
      PE_TILE_LOAD(5, a2, kAStride);
      PE_TILE_DOT(2, 5, 6);
      PE_TILE_DOT(3, 5, 7);
      a2 += kTileElements;
    } else {
      PE_TILE_LOAD(5, b2, kBStride);
      PE_TILE_LOAD(6, b2 + 32, kBStride);
      PE_TILE_DOT(2, 4, 5);
      PE_TILE_DOT(3, 4, 6);
      b2 += kBStep;
    }
    a += kTileElements;
    b += kBStep;
  }
}

inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

inline __mmask16 lanes(int64_t n) {
  return n >= 16 ? 0xffff : n > 0 ? static_cast<__mmask16>((1 << n) - 1) : 0;
}

// The block of C that a tile loop computes: `rows` x `columns` of it exist.
struct Target {
  float* c;
  int64_t ldc, rows, columns;
};

template <Shape shape>
void copy_in(const Target& target, float* sums) {
  for (int64_t r = 0; r < target.rows; ++r) {
    for (int64_t n = 0; n < target.columns; n += 16) {
      const float* from = target.c + r * target.ldc + n;
      _mm512_storeu_ps(sums + r * width(shape) + n,
                       _mm512_maskz_loadu_ps(lanes(target.columns - n), from));
    }
  }
}

template <Shape shape>
void copy_out(const float* sums, const Target& target) {
  for (int64_t r = 0; r < target.rows; ++r) {
    for (int64_t n = 0; n < target.columns; n += 16) {
      _mm512_mask_storeu_ps(target.c + r * target.ldc + n, lanes(target.columns - n),
                            _mm512_loadu_ps(sums + r * width(shape) + n));
    }
  }
}

// FP8: the blocks' sums, each times the scale of its row and column, are added up here, not in C,
// whose rows may evict each other from the L1 cache.
template <Shape shape>
struct Totals {
  const Product& job;
  Target target;
  const float* row_scales;     // [blocks][job.a.scale_stride]
  const float* column_scales;  // [blocks][kVnniPanel], the next panel b_scale_stride behind
  alignas(64) float sums[2][kSums];
  alignas(64) float totals[kSums];

  Totals(const Product& job, const Target& target, const float* row_scales,
         const float* column_scales)  // leaves the sums as they are
      : job(job), target(target), row_scales(row_scales), column_scales(column_scales) {}

  // totals += sums of the block; the first goes on from C or zero, the last writes C.
  void add(int64_t block, bool last) {
    const bool first = block == 0;
    const __m512 factor = _mm512_set1_ps(job.b_factor);
    const float* from = first && !job.accumulate ? nullptr : first ? target.c : totals;
    const int64_t from_stride = first ? target.ldc : width(shape);
    float* to = last ? target.c : totals;
    const int64_t to_stride = last ? target.ldc : width(shape);
    for (int64_t n = 0; n < target.columns; n += kVnniPanel) {
      const float* scales =
          column_scales + n / kVnniPanel * job.b_scale_stride + block * kVnniPanel;
      const __m512 low = _mm512_loadu_ps(scales), high = _mm512_loadu_ps(scales + 16);
      const __mmask16 left = lanes(target.columns - n), right = lanes(target.columns - n - 16);
      const float* sum = sums[block % 2] + n;
      for (int64_t r = 0; r < target.rows; ++r, sum += width(shape)) {
        const __m512 scale = _mm512_set1_ps(row_scales[block * job.a.scale_stride + r]);
        __m512 x = _mm512_setzero_ps(), y = _mm512_setzero_ps();
        if (from) {
          x = _mm512_maskz_loadu_ps(left, from + r * from_stride + n);
          y = _mm512_maskz_loadu_ps(right, from + r * from_stride + n + 16);
        }
        x = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_load_ps(sum), factor),
                            _mm512_mul_ps(scale, low), x);
        y = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_load_ps(sum + 16), factor),
                            _mm512_mul_ps(scale, high), y);
        _mm512_mask_storeu_ps(to + r * to_stride + n, left, x);
        _mm512_mask_storeu_ps(to + r * to_stride + n + 16, right, y);
      }
    }
  }
};

// C's lines come from afar while the tiles multiply.
inline void expect_writes(const Target& target) {
  for (int64_t r = 0; r < target.rows; ++r) {
    const float* row = target.c + r * target.ldc;
    for (int64_t n = 0; n < target.columns; n += 16) __builtin_prefetch(row + n, 1);
  }
}

// One tile loop: 32 rows x 1 panel, or 16 rows x 2 panels. `one_panel`: the second does not exist.
template <Shape shape>
void tile(const Product& job, int64_t row, int64_t panel, bool one_panel) {
  const uint16_t* a =
      static_cast<const uint16_t*>(job.a.data) + row / kTileRows * job.a.row_stride;
  const uint16_t* b = reinterpret_cast<const uint16_t*>(job.b + panel * job.panel_stride);
  const uint16_t* a2 = a + job.a.row_stride;
  const uint16_t* b2 = one_panel ? b : b + job.panel_stride / 2;
  const int64_t steps = round_up(job.K, kVnniK) / kVnniK;
  const int64_t rows = job.rows - row, columns = job.columns - panel * kVnniPanel;
  const Target target = {job.c + row * job.ldc + panel * kVnniPanel, job.ldc,
                         least_of(rows, height(shape)), least_of(columns, width(shape))};
  if (!job.accumulate) expect_writes(target);
  if (!job.b_scales) {
    alignas(64) float sums[kSums];
    const bool whole = target.rows == height(shape) && target.columns == width(shape);
    if (!job.accumulate) {
      clear_sums();
    } else if (whole) {
      load_sums<shape>(target.c, target.ldc);
    } else {
      copy_in<shape>(target, sums);
      load_sums<shape>(sums, width(shape));
    }
    accumulate<shape>(a, a2, b, b2, steps);
    if (whole) return store_sums<shape>(target.c, target.ldc);
    store_sums<shape>(sums, width(shape));
    return copy_out<shape>(sums, target);
  }
  constexpr int64_t stride = kScaleBlock / kVnniK;
  const int64_t blocks = (steps + stride - 1) / stride;
  Totals<shape> totals(job, target, job.a.scales + row, job.b_scales + panel * job.b_scale_stride);
  // Scaling a block overlaps the products of the next one.
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t step = block * stride, at_a = step * kTileElements, at_b = step * kBStep;
    clear_sums();
    accumulate<shape>(a + at_a, a2 + at_a, b + at_b, b2 + at_b,
                      least_of(steps - step, stride));
    if (block > 0) totals.add(block - 1, false);
    store_sums<shape>(totals.sums[block % 2], width(shape));
  }
  totals.add(blocks - 1, true);
}

void multiply(const Product& job) {
  const TileShapes shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  const int64_t panels = (job.columns + kVnniPanel - 1) / kVnniPanel;
  const int64_t rest = job.rows % 32, squares = rest > 16 ? job.rows : job.rows - rest;
  const int64_t fit = kGroupBytes / (round_up(job.K, kVnniK) * kVnniPanel * 2);
  const int64_t group = fit < 2 ? 2 : fit / 2 * 2;
  for (int64_t panel = 0; panel < panels; panel += group) {
    const int64_t stop = least_of(panels, panel + group);
    for (int64_t row = 0; row < squares; row += 32) {
      for (int64_t p = panel; p < stop; ++p) tile<kSquare>(job, row, p, true);
    }
    for (int64_t p = panel; p < stop && squares < job.rows; p += 2) {
      tile<kWide>(job, squares, p, p + 1 == panels);
    }
  }
  asm volatile("tilerelease" ::);
}

// 32 of K of two panels.
inline __attribute__((always_inline)) void decode_step(const uint8_t* codes,
                                                       uint16_t (&values)[kCodePanels][kBStep]) {
  for (int64_t i = 0; i < kBStep; i += kCodeRow) {
    decode(codes, values[0] + i);
    decode(codes + kCodeRow, values[1] + i);
    codes += kCodePanels * kCodeRow;
  }
}

// 16 rows x 2 panels of codes.
void tile_of_codes(const Product& job, int64_t panel, bool one_panel) {
  alignas(64) uint16_t values[2][kCodePanels][kBStep];
  const uint16_t* a = static_cast<const uint16_t*>(job.a.data);
  const uint8_t* codes = job.b + panel * job.panel_stride;
  const int64_t columns = job.columns - panel * kVnniPanel;
  const Target target = {job.c + panel * kVnniPanel, job.ldc, job.rows,
                         least_of(columns, width(kWide))};
  const int64_t steps = round_up(job.K, kVnniK) / kVnniK, stride = kScaleBlock / kVnniK;
  Totals<kWide> totals(job, target, job.a.scales, job.b_scales + panel * job.b_scale_stride);
  int64_t block = 0;
  for (int64_t step = 0; step < steps; ++block) {
    clear_sums();
    for (const int64_t end = least_of(steps, step + stride); step < end; ++step) {
      auto& now = values[step % 2];
      decode_step(codes, now);
      accumulate<kWide>(a, nullptr, now[0], now[one_panel ? 0 : 1], 1);
      a += kTileElements;
      codes += kCodePanels * kBStep;
    }
    if (block > 0) totals.add(block - 1, false);
    store_sums<kWide>(totals.sums[block % 2], width(kWide));
  }
  totals.add(block - 1, true);
}

const Engine engine = {kVnniPanel,   kVnniK,       2,           32,  kVnniBlockRows,
                       kVnniBlockK,  &vnni_pack_b, &vnni_pack_a, &multiply};

}  // namespace

const Engine& amx_engine() { return engine; }

void amx_multiply_codes(const Product& product) {
  Product job = product;
  job.b_factor = kFactor;
  const TileShapes shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  const int64_t panels = (job.columns + kVnniPanel - 1) / kVnniPanel;
  for (int64_t panel = 0; panel < panels; panel += kCodePanels) {
    tile_of_codes(job, panel, panel + 1 == panels);
  }
  asm volatile("tilerelease" ::);
}
#else
void amx_multiply_codes(const Product&) {}
const Engine& amx_engine() { return fp32_engine(); }
#endif

}  // namespace paddle_ernie

#ifdef PE_PAIRS
#pragma GCC pop_options
#endif
