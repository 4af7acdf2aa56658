// Rotary position embedding of interleaved pairs (Su et al. 2021): a pair (2i, 2i + 1) is one
// complex number, multiplied by the rotation of its token and pair.
#pragma once

#include <cstdint>

namespace paddle_ernie {

struct RopeKernels {
  void (*rotate)(const float* x, const float* rotations, bool inverse, float* y, int64_t heads,
                 int64_t N, int64_t d, int64_t begin, int64_t end);
};

// x, y [T, N, d]; rotations [T, d] hold cos, sin of each pair. The first `heads` heads are turned
// (backwards if `inverse`), the others copied. d is even.
void rope(const float* x, const float* rotations, bool inverse, float* y, int64_t heads, int64_t T,
          int64_t N, int64_t d);

}  // namespace paddle_ernie
