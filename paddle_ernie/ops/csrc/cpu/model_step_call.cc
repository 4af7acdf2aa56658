// The step as a plain C function, called from Python through ctypes, which releases its lock. As an
// operator the call would cost a fifth of a small model's step: Paddle takes 20 us for every tensor
// that it has not seen before.
#include <string>

#include "model_step.h"
#include "paged_batch.h"

namespace paddle_ernie {
namespace {

// In the order of ops/model_step.py; every field is 8 bytes.
struct StepCall {
  const uint8_t* block;  // see model_weights.h
  int64_t block_bytes;
  uint8_t* const* pages;  // of each layer
  int64_t num_layers, num_pages;
  int64_t page_bytes;  // of a page with all key heads
  PagedBatch batch;
  int64_t T;
  const int64_t* ids;
  const float* rotations;
  int64_t positions;  // that have rotations
  int64_t R;
  const int64_t* rows;
  float* logits;    // [R, V]
  int32_t* routes;  // [T, MoE layers, K] or null
};

std::string outside(const char* name, const int64_t* values, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] >= 0 && values[i] < limit) continue;
    return std::string(name) + " " + std::to_string(i) + " is " + std::to_string(values[i]) +
           "; expected 0 to " + std::to_string(limit - 1);
  }
  return "";
}

// Whatever would read or write out of bounds is an error.
std::string run(const StepCall& call) {
  if (!model_fits(call.block, call.block_bytes)) {
    return "the weights were packed for another instruction set; pack them again";
  }
  const ModelWeights model = open_model(call.block);
  if (call.num_layers != model.shape.layers) {
    return "there are pages for " + std::to_string(call.num_layers) + " layers; the model has " +
           std::to_string(model.shape.layers);
  }
  const Heads heads = model.shape.heads();
  const int64_t page_bytes = heads.G * heads.page_bytes();
  if (call.page_bytes != page_bytes) {
    return "a page has " + std::to_string(call.page_bytes) + " bytes; the model's have " +
           std::to_string(page_bytes);
  }
  std::string wrong = outside("id", call.ids, call.T, model.shape.V);
  if (wrong.empty()) wrong = outside("row", call.rows, call.R, call.T);
  StepBatch batch = {call.T, call.ids, {}, call.rotations, {}, call.R, call.rows};
  if (wrong.empty()) wrong = read_batch(call.batch, call.T, call.num_pages, &batch.sequences);
  if (!wrong.empty()) return wrong;
  int64_t tokens = 0;
  for (const Sequence& sequence : batch.sequences) {
    tokens += sequence.tokens;
    if (sequence.history + sequence.tokens > call.positions) {
      return "rotations are of " + std::to_string(call.positions) + " positions";
    }
  }
  if (tokens != call.T) {
    return "the sequences have " + std::to_string(tokens) + " new tokens, ids are " +
           std::to_string(call.T);
  }
  batch.pages.assign(call.pages, call.pages + call.num_layers);
  if (call.T) model_step(model, batch, call.logits, call.routes);
  return "";
}

}  // namespace
}  // namespace paddle_ernie

// Returns null, or what was wrong; the text stays until the thread's next call.
extern "C" __attribute__((visibility("default"))) const char* pe_model_step(
    const paddle_ernie::StepCall* call) {
  static thread_local std::string wrong;
  try {
    wrong = paddle_ernie::run(*call);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  return wrong.empty() ? nullptr : wrong.c_str();
}
