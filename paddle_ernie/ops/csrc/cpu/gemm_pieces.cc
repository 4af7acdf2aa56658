#include "gemm_pieces.h"

#include <algorithm>

#include "gemm_layout.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kBlockRows = 32;  // two rows of tiles; a multiple of their height
constexpr int64_t kTileHeight = 16;
constexpr int64_t kFewPanels = 4;    // what products of one row take at once, and even
constexpr int64_t kMostBlocks = 16;  // for which codes are decoded at once

int64_t part_floats(const Engine& engine, int64_t rows) {
  return round_up(rows, kTileHeight) * (engine.k_block + kPadding);
}

int64_t scale_floats(const Engine& engine) {
  return (engine.block_rows + kPadding) * engine.k_block / kScaleBlock;
}

}  // namespace

int64_t panels_of(Format format, int64_t N) {
  const int64_t panel = engine_of(format).panel;
  return (N + panel - 1) / panel;
}

void LeftSide::reset(Format format, bool power_of_two_scales, int64_t K, const int64_t* counts,
                     int64_t groups) {
  engine_ = &engine_of(format);
  format_ = format;
  power_of_two_scales_ = power_of_two_scales;
  K_ = K;
  parts_ = (K + engine_->k_block - 1) / engine_->k_block;
  blocks_.clear();
  offsets_.clear();
  int64_t row = 0, floats = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t end = row + counts[group];
    while (row < end) {
      const int64_t rows = std::min(kBlockRows, end - row);
      blocks_.push_back({group, row, rows});
      offsets_.push_back(floats);
      floats += parts_ * part_floats(*engine_, rows);
      row += rows;
    }
  }
  const int64_t count = static_cast<int64_t>(blocks_.size()) * parts_;
  packed_.resize(count);
  data_.get<float>(floats);
  if (format == Format::kFp8) scales_.get<float>(count * scale_floats(*engine_));
}

void LeftSide::pack(int64_t block, const float* a) {
  const RowBlock& rows = blocks_[block];
  for (int64_t part = 0; part < parts_; ++part) {
    const int64_t k = part * engine_->k_block, at = block * parts_ + part;
    float* data = data_.data<float>() + offsets_[block] + part * part_floats(*engine_, rows.rows);
    float* scales = nullptr;
    if (format_ == Format::kFp8) scales = scales_.data<float>() + at * scale_floats(*engine_);
    packed_[at] = engine_->pack_a({a + rows.row * K_ + k, K_, false, rows.rows,
                                   std::min(engine_->k_block, K_ - k), format_,
                                   power_of_two_scales_}, data, scales);
  }
}

void LeftSide::multiply(int64_t begin, int64_t end, const uint8_t* packed_b, bool codes, int64_t N,
                        int64_t panel, int64_t panels, float* c) const {
  codes = codes && has_codes(format_);
  const Layout layout(*engine_, K_, N, codes);
  // Few rows wait for memory, and B should come as it lies there: all parts of some panels first.
  const int64_t some = end - begin > 1 || parts_ == 1 ? panels : codes ? kCodePanels : kFewPanels;
  Product products[kMostBlocks];
  for (int64_t first = begin; first < end; first += kMostBlocks) {
    const int64_t count = std::min(kMostBlocks, end - first);
    for (int64_t from = 0; from < panels; from += some) {
      for (int64_t part = 0; part < parts_; ++part) {
        for (int64_t i = 0; i < count; ++i) {
          Product& product = products[i] =
              product_of(first + i, part, N, panel + from, std::min(some, panels - from), c);
          set_right_side(*engine_, layout, format_, packed_b, panel + from,
                         part * engine_->k_block, &product);
          if (!codes) engine_->multiply(product);
        }
        if (codes) multiply_codes(*engine_, products, count);
      }
    }
  }
}

// Without its right side.
Product LeftSide::product_of(int64_t block, int64_t part, int64_t N, int64_t panel, int64_t panels,
                             float* c) const {
  const RowBlock& rows = blocks_[block];
  Product product;
  product.a = packed_[block * parts_ + part];
  product.rows = rows.rows;
  product.K = std::min(engine_->k_block, K_ - part * engine_->k_block);
  product.columns = std::min(panels * engine_->panel, N - panel * engine_->panel);
  product.c = c + rows.row * N + panel * engine_->panel;
  product.ldc = N;
  product.accumulate = part > 0;
  return product;
}

}  // namespace paddle_ernie
