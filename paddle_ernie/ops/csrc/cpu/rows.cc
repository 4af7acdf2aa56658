#include "rows.h"

#include <algorithm>
#include <cstring>

#include "parallel.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kPieceFloats = 1 << 14;  // 64 KB: long rows are shared between threads

// copy(row, offset, floats) over all pieces of N rows.
template <class Copy>
void copy_rows(int64_t N, int64_t width, const Copy& copy) {
  const int64_t piece = std::min(width, kPieceFloats);
  if (piece <= 0) return;
  const int64_t pieces = (width + piece - 1) / piece;
  parallel_for(N * pieces, std::max<int64_t>(1, kPieceFloats / piece),
               [&](int64_t begin, int64_t end) {
                 for (int64_t at = begin; at < end; ++at) {
                   const int64_t offset = at % pieces * piece;
                   copy(at / pieces, offset, std::min(piece, width - offset));
                 }
               });
}

}  // namespace

template <class Index>
void gather_rows(const float* x, const Index* rows, float* y, int64_t N, int64_t width) {
  copy_rows(N, width, [&](int64_t n, int64_t offset, int64_t count) {
    std::memcpy(y + n * width + offset, x + rows[n] * width + offset, count * sizeof(float));
  });
}

template void gather_rows(const float*, const int32_t*, float*, int64_t, int64_t);
template void gather_rows(const float*, const int64_t*, float*, int64_t, int64_t);

void scatter_rows(const float* x, const int64_t* rows, float* y, int64_t N, int64_t width) {
  copy_rows(N, width, [&](int64_t n, int64_t offset, int64_t count) {
    std::memcpy(y + rows[n] * width + offset, x + n * width + offset, count * sizeof(float));
  });
}

}  // namespace paddle_ernie
