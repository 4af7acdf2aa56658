#include "permute.h"

#include <algorithm>
#include <vector>

#include "isa.h"
#include "parallel.h"

#define PE_KERNEL_FILE "permute_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kGrain = 64;  // rows

}  // namespace

int64_t sort_slots(const int64_t* experts, const int32_t* starts, int64_t T, int64_t E,
                   int32_t* tokens, int32_t* sources, int32_t* slots, int64_t* counts) {
  const int64_t N = starts[T];
  std::fill(counts, counts + E, 0);
  for (int64_t n = 0; n < N; ++n) {
    if (experts[n] < 0 || experts[n] >= E) return n;
    ++counts[experts[n]];
  }
  std::vector<int32_t> next(E);
  int32_t first = 0;
  for (int64_t e = 0; e < E; ++e) {
    next[e] = first;
    first += static_cast<int32_t>(counts[e]);
  }
  for (int64_t t = 0; t < T; ++t) {
    for (int32_t n = starts[t]; n < starts[t + 1]; ++n) {
      const int32_t slot = next[experts[n]]++;
      tokens[slot] = static_cast<int32_t>(t);
      sources[slot] = n;
      int32_t at = n;  // insertion sort: a token has few slots
      for (; at > starts[t] && slots[at - 1] > slot; --at) slots[at] = slots[at - 1];
      slots[at] = slot;
    }
  }
  return -1;
}

void combine(const Dispatch& to, const float* y, const float* weights, const float* const* bases,
             int64_t num_bases, float* out, int64_t D) {
  const PermuteKernels& kernels = PE_KERNELS(permute_kernels);
  parallel_for(to.T, kGrain, [&](int64_t begin, int64_t end) {
    kernels.combine(to, y, weights, bases, num_bases, out, D, begin, end);
  });
}

void combine_gradient(const Dispatch& to, const float* y, const float* weights, const float* dout,
                      float* dy, float* dweights, int64_t D) {
  const PermuteKernels& kernels = PE_KERNELS(permute_kernels);
  parallel_for(to.N, kGrain, [&](int64_t begin, int64_t end) {
    kernels.combine_gradient(to, y, weights, dout, dy, dweights, D, begin, end);
  });
}

}  // namespace paddle_ernie
