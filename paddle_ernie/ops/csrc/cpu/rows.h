// Copies of whole rows.
#pragma once

#include <cstdint>

namespace paddle_ernie {

// y[n] = x[rows[n]]; rows of `width` floats.
template <class Index>
void gather_rows(const float* x, const Index* rows, float* y, int64_t N, int64_t width);

// y[rows[n]] = x[n].
void scatter_rows(const float* x, const int64_t* rows, float* y, int64_t N, int64_t width);

}  // namespace paddle_ernie
