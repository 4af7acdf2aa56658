#include "gemm_codes.h"

#include <cstring>
#include <limits>

#include "gemm_vnni.h"
#include "isa.h"

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

// Not std::min: its one copy might be compiled for this processor and serve the whole program.
inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

uint8_t code_of(uint16_t bits) {
  const uint16_t sign = bits >> 8 & 0x80, magnitude = bits & 0x7fff;
  if (magnitude >= 121 << 7) return sign | (magnitude - (120 << 7)) >> 4;
  const uint32_t wide = static_cast<uint32_t>(magnitude) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return sign | static_cast<uint8_t>(value * 512.0f);
}

}  // namespace

bool has_codes(Format format) { return format == Format::kFp8 && isa() >= Isa::kAvx512Bf16; }

void encode_panel(const uint16_t* panel, int64_t K, float* scales, uint8_t* codes) {
  for (int64_t k = 0; k < round_up(K, kVnniK); k += 2) {
    for (int64_t i = 0; i < kCodeRow; ++i) {
      const uint16_t bits = panel[k * kVnniPanel + i];
      const bool nan = (bits & 0x7fff) > 0x7f80;
      if (nan) {
        scales[k / kScaleBlock * kVnniPanel + i / 2] = std::numeric_limits<float>::quiet_NaN();
      }
      codes[k / 2 * kCodePanels * kCodeRow + i % 32 * 2 + i / 32] = nan ? 0 : code_of(bits);
    }
  }
}

void multiply_codes(const Engine& engine, const Product* products, int64_t count) {
  alignas(64) uint16_t values[kCodePanels][kVnniBlockK * kVnniPanel];
  const Product& first = products[0];
  const int64_t K = first.K, panels = (first.columns + kVnniPanel - 1) / kVnniPanel;
  if (count == 1 && first.rows <= kTileRows && isa() == Isa::kAmx) return amx_multiply_codes(first);
  // For one block of rows what is decoded stays in the L1 cache, for many in the L2.
  const int64_t most = count == 1 ? kScaleBlock : kVnniBlockK;
  for (int64_t panel = 0; panel < panels; panel += kCodePanels) {
    const uint8_t* codes = first.b + panel * first.panel_stride;
    for (int64_t k = 0; k < K; k += most) {
      const int64_t width = least_of(K - k, most);
      for (int64_t i = 0; i < round_up(width, kVnniK) * kVnniPanel; i += kCodeRow) {
        for (int64_t p = 0; p < kCodePanels; ++p, codes += kCodeRow) decode(codes, values[p] + i);
      }
      for (int64_t i = 0; i < count; ++i) {
        Product product = products[i];
        const int64_t block = k / kScaleBlock, columns = panel * kVnniPanel;
        product.a.data = static_cast<const uint16_t*>(product.a.data) +
                         k / kVnniK * product.a.k_stride;
        product.a.scales += block * product.a.scale_stride;
        product.K = width;
        product.columns = least_of(product.columns - columns, kCodePanels * kVnniPanel);
        product.b = reinterpret_cast<const uint8_t*>(values);
        product.panel_stride = sizeof(values[0]);
        product.b_scales += panel * product.b_scale_stride + block * kVnniPanel;
        product.b_factor = kFactor;
        product.c += columns;
        product.accumulate |= k > 0;
        engine.multiply(product);
      }
    }
  }
}
#else
bool has_codes(Format) { return false; }
void encode_panel(const uint16_t*, int64_t, float*, uint8_t*) {}
void multiply_codes(const Engine&, const Product*, int64_t) {}
#endif

}  // namespace paddle_ernie

#ifdef PE_PAIRS
#pragma GCC pop_options
#endif
