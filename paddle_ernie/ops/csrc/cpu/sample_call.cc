// `sample` for ops/sampling.py, by address: an operator would cost more than drawing a row does.

#include <exception>
#include <string>

#include "sample.h"

static_assert(sizeof(paddle_ernie::DrawFloats) == 4 * sizeof(float), "four floats");
static_assert(sizeof(paddle_ernie::DrawInts) == 3 * sizeof(int64_t), "three integers");

// Returns null, or what was wrong; the text stays until the thread's next call.
extern "C" __attribute__((visibility("default"))) const char* pe_sample(
    const float* logits, int64_t rows, int64_t vocabulary, int64_t num_ids,
    const paddle_ernie::DrawFloats* floats, const paddle_ernie::DrawInts* ints, int64_t* ids,
    float* logprobs) {
  static thread_local std::string wrong;
  try {
    paddle_ernie::sample({logits, rows, vocabulary}, num_ids, floats, ints, ids, logprobs);
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
    return wrong.c_str();
  }
}
