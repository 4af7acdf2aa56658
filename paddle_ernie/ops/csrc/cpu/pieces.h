// How much of a memory-bound loop one thread takes at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace paddle_ernie {

// Small enough that what a piece reads and writes stays in the L1 and L2 caches, large enough that
// handing it out (some 100 ns) does not show.
constexpr int64_t kPieceBytes = 1 << 15;

// Rows of `row_bytes` bytes that make up `bytes`, at least one.
inline int64_t rows_of_bytes(int64_t bytes, int64_t row_bytes) {
  return std::max<int64_t>(1, bytes / std::max<int64_t>(1, row_bytes));
}

}  // namespace paddle_ernie
