// Which engine a format has, and how a packed B lies in memory: a header, panels, FP8 scales.
#pragma once

#include <cstdint>

#include "gemm_codes.h"
#include "gemm_engine.h"
#include "isa.h"
#include "workspace.h"

namespace paddle_ernie {

constexpr int64_t kHeaderBytes = kAlignment;

inline const Engine& engine_of(Format format) {
  if (format == Format::kFp32 || isa() < Isa::kAvx512Bf16) return fp32_engine();
  return isa() == Isa::kAmx ? amx_engine() : bf16_engine();
}

// First bytes of a packed B: enough to notice one that was packed for another product.
struct Header {
  int64_t K, N;
  int32_t format, panel, k_unit, element_bytes;
};

inline Header header_of(const Engine& engine, Format format, int64_t K, int64_t N, bool codes) {
  return {K, N, static_cast<int32_t>(format), static_cast<int32_t>(engine.panel),
          static_cast<int32_t>(engine.k_unit),
          static_cast<int32_t>(codes ? 1 : engine.element_bytes)};
}

// Where things are in a packed B, from its first byte on.
struct Layout {
  bool codes;
  int64_t element_bytes, panels, panel_bytes, scale_stride;

  // `codes`: see gemm_codes.h.
  Layout(const Engine& engine, int64_t K, int64_t N, bool codes = false)
      : codes(codes), element_bytes(codes ? 1 : engine.element_bytes),
        panels(round_up((N + engine.panel - 1) / engine.panel, codes ? kCodePanels : 1)),
        panel_bytes(round_up(K, engine.k_unit) * engine.panel * element_bytes),
        scale_stride(round_up(K, kScaleBlock) / kScaleBlock * engine.panel) {}

  int64_t values_end() const { return kHeaderBytes + panels * panel_bytes; }
  int64_t scales_at() const { return round_up(values_end(), kAlignment); }
  int64_t scales_end(Format format) const {
    return scales_at() + (format == Format::kFp8 ? panels * scale_stride * 4 : 0);
  }
  int64_t bytes(Format format) const { return round_up(scales_end(format), kAlignment); }
};

// The part of a product that B is: from panel `panel` and row `k` on. (Codes: an even panel.)
inline void set_right_side(const Engine& engine, const Layout& layout, Format format,
                           const uint8_t* packed, int64_t panel, int64_t k, Product* product) {
  product->b = packed + kHeaderBytes + panel * layout.panel_bytes +
               k * engine.panel * layout.element_bytes * (layout.codes ? kCodePanels : 1);
  product->panel_stride = layout.panel_bytes;
  product->b_scales = nullptr;
  if (format == Format::kFp8) {
    product->b_scales = reinterpret_cast<const float*>(packed + layout.scales_at()) +
                        panel * layout.scale_stride + k / kScaleBlock * engine.panel;
  }
  product->b_scale_stride = layout.scale_stride;
}

}  // namespace paddle_ernie
