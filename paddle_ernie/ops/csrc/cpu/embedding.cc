#include "embedding.h"

#include <algorithm>
#include <cstring>

#include "isa.h"
#include "parallel.h"
#include "pieces.h"
#include "workspace.h"

#define PE_KERNEL_FILE "embedding_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {
namespace {

// A counting sort of the tokens by id, stable: those of id v are tokens[starts[v] .. starts[v+1]).
void group_by_id(const int64_t* ids, int64_t T, int64_t V, int64_t* starts, int64_t* tokens) {
  // Two entries ahead at first, so that filling the groups moves each start to its place.
  std::fill(starts, starts + V + 2, 0);
  for (int64_t t = 0; t < T; ++t) ++starts[ids[t] + 2];
  for (int64_t v = 2; v < V + 2; ++v) starts[v] += starts[v - 1];
  for (int64_t t = 0; t < T; ++t) tokens[starts[ids[t] + 1]++] = t;
}

}  // namespace

void embedding_forward(const int64_t* ids, const float* weight, float* y, int64_t T, int64_t D) {
  parallel_for(T, rows_of_bytes(kPieceBytes, D * 4), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(y + t * D, weight + ids[t] * D, D * sizeof(float));
    }
  });
}

void embedding_backward(const int64_t* ids, const float* dy, float* dweight, int64_t T, int64_t V,
                        int64_t D) {
  static thread_local Workspace workspace;
  const EmbeddingKernels& kernels = PE_KERNELS(embedding_kernels);
  int64_t* starts = workspace.get<int64_t>(V + 2 + T);
  int64_t* tokens = starts + V + 2;
  group_by_id(ids, T, V, starts, tokens);
  parallel_for(V, rows_of_bytes(kPieceBytes, D * 4), [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      float* total = dweight + v * D;
      int64_t at = starts[v];
      if (at == starts[v + 1]) {
        std::memset(total, 0, D * sizeof(float));
        continue;
      }
      std::memcpy(total, dy + tokens[at++] * D, D * sizeof(float));
      for (; at < starts[v + 1]; ++at) kernels.add_row(dy + tokens[at] * D, total, D);
    }
  });
}

}  // namespace paddle_ernie
