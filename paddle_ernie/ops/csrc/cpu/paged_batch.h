// The sequences of a step from the arrays of ops/paged_attention.py, checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention.h"

namespace paddle_ernie {

struct PagedBatch {
  int64_t B, most;         // sequences, and the width of their table
  const int32_t* tables;   // [B, most]
  const int64_t* lengths;  // [B]: positions that the pages hold already
  const int64_t* starts;   // [B + 1]: sequence b has tokens starts[b] to starts[b + 1]
};

// Sequences with new tokens, among T of them, into `sequences`. Returns what is wrong, or nothing.
std::string read_batch(const PagedBatch& batch, int64_t T, int64_t num_pages,
                       std::vector<Sequence>* sequences);

}  // namespace paddle_ernie
