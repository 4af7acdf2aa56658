// Draws tokens from rows of logits. What it computes, ops/sampling.py defines: its plain body returns
// the same ids, and so does every instruction set.
#pragma once

#include <cstdint>

namespace paddle_ernie {

constexpr int64_t kNoToken = -1;  // of a row in which none can be chosen
constexpr int64_t kPeakBlock = 64;     // logits whose maximum is kept to skip them
constexpr int64_t kWeightBlock = 512;  // logits whose weights' sum is kept to skip them

struct SampleKernels {
  // Maximum of every kPeakBlock logits; returns whether there is a NaN.
  bool (*peaks)(const float* z, int64_t V, float* peaks);
  // Sum of the weights of every kWeightBlock logits.
  void (*weight_sums)(const float* z, int64_t V, float peak, float scale, uint64_t* sums);
  void (*weights)(const float* z, int64_t n, float peak, float scale, uint32_t* weights);
  // The n <= kPeakBlock logits that are `lowest` or more, in order, with ids from `first` on; how
  // many. Writes up to kPeakBlock elements.
  int64_t (*at_least)(const float* z, int64_t n, float lowest, int64_t first, float* kept,
                      int32_t* ids);
};

// As RowParams in ops/sampling.py.
struct DrawFloats {
  float temperature, top_p, min_p, logprob_temperature;
};
struct DrawInts {
  int64_t top_k, seed, position;
};

struct LogitRows {
  const float* logits;  // [R, V]
  int64_t R, V;
};

// ids, logprobs [R]. Ids are below `num_ids`; log-probabilities are over all V.
void sample(const LogitRows& rows, int64_t num_ids, const DrawFloats* floats, const DrawInts* ints,
            int64_t* ids, float* logprobs);

// ids, logprobs [R, count], best first.
void top_logprobs(const LogitRows& rows, const float* temperatures, int64_t count, int64_t* ids,
                  float* logprobs);

// out [R, V].
void nucleus(const LogitRows& rows, const float* temperatures, const float* top_ps, float* out);

}  // namespace paddle_ernie
