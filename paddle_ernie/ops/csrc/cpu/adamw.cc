#include "adamw.h"

#include <algorithm>

#include "isa.h"
#include "parallel.h"

#define PE_KERNEL_FILE "adamw_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kPiece = 1 << 16;  // elements

struct Piece {
  int64_t tensor, begin, end;
};

template <class Item>
std::vector<Piece> pieces_of(const std::vector<Item>& items) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < items.size(); ++i) {
    for (int64_t begin = 0; begin < items[i].count; begin += kPiece) {
      pieces.push_back({static_cast<int64_t>(i), begin, std::min(items[i].count, begin + kPiece)});
    }
  }
  return pieces;
}

}  // namespace

void adamw(const std::vector<AdamwTensor>& tensors, const AdamwStep& step) {
  const AdamwKernels& kernels = PE_KERNELS(adamw_kernels);
  const std::vector<Piece> pieces = pieces_of(tensors);
  parallel_for(pieces.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels.update(tensors[pieces[i].tensor], step, pieces[i].begin, pieces[i].end);
    }
  });
}

double sum_of_squares(const std::vector<Span>& spans) {
  const AdamwKernels& kernels = PE_KERNELS(adamw_kernels);
  const std::vector<Piece> pieces = pieces_of(spans);
  std::vector<double> sums(pieces.size());
  parallel_for(pieces.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[i];
      sums[i] = kernels.sum_of_squares(spans[piece.tensor].data, piece.begin, piece.end);
    }
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace paddle_ernie
