#include "model_step.h"

#include <algorithm>
#include <cstring>

#include "add.h"
#include "embedding.h"
#include "gemm_pieces.h"
#include "norm.h"
#include "permute.h"
#include "rope.h"
#include "router.h"
#include "swiglu.h"
#include "team.h"
#include "workspace.h"

namespace paddle_ernie {
namespace {

constexpr int64_t kTasksPerThread = 4;   // evens out what a slow thread leaves behind
constexpr int64_t kFewestPanels = 4;     // of a task: what products of few rows take at once
constexpr int64_t kTaskBytes = 512 << 10;  // of B: stays in a core's L2 while rows pass

// One thread's share of a product: blocks of rows [begin, end).
struct ProductTask {
  const LeftSide* left;
  int64_t begin, end;
  const uint8_t* packed;
  bool codes;
  int64_t N, panel, panels;
  float* c;
};

// What is kept from step to step, so that a step allocates nothing.
struct StepSpace {
  Workspace floats, integers, scratch;
  LeftSide normed, scored, attended, mlp, shared, slots, slot_hidden, wanted;
  std::vector<ProductTask> products;
};

// The stages of a layer, and those after the last layer.
enum Stage {
  kNormInput, kQkv, kWritePages, kAttend, kPackAttended, kOut, kNormPost, kGather, kGateUp,
  kActivate, kDown, kLayerStages
};
enum LastStage { kComplete, kNormWanted, kHead, kLastStages };

// A program for a team of threads (team.h).
class Step {
 public:
  Step(const ModelWeights& model, const StepBatch& batch, float* logits, int32_t* routes,
       StepSpace& space);

  int thread_count() const { return threads_; }
  int64_t begin(int64_t stage);
  void item(int64_t stage, int64_t i, int thread);

 private:
  void reset(LeftSide& left, Format format, int64_t K, const int64_t* counts, int64_t groups = 1) {
    left.reset(format, shape_.power_of_two_scales, K, counts, groups);
  }
  void place_buffers();

  int64_t begin_layer(Stage stage, const LayerWeights& weights);
  int64_t begin_last(LastStage stage);
  int64_t plan_gate_up(const LayerWeights& weights);
  int64_t plan_down(const LayerWeights& weights);
  void plan(const LeftSide& left, Format format, const uint8_t* packed, int64_t K, int64_t N,
            float* c);
  int64_t planned() const { return static_cast<int64_t>(space_.products.size()); }

  void layer_item(Stage stage, int64_t layer, int64_t i, int thread);
  void multiply(const ProductTask& task);
  void complete(const RowBlock& rows, int64_t layer);
  void norm_input(int64_t block, int64_t layer);
  void write_pages(const AttentionPiece& piece, int64_t layer, int thread);
  void norm_post(int64_t block, int64_t layer);
  void route_rows(const LayerWeights& weights, int64_t layer, int64_t block);
  void sort_experts();
  void gather(int64_t block);
  void activate(int64_t block, bool moe);
  void norm_wanted(int64_t block);

  uint8_t* scratch(int thread) const {
    return space_.scratch.data<uint8_t>() + thread * scratch_bytes_;
  }

  const ModelWeights& model_;
  const ModelShape& shape_;
  const StepBatch& batch_;
  float* const logits_;
  int32_t* const routes_;
  StepSpace& space_;
  const AttentionPieces attention_;
  const int threads_ = threads();
  size_t scratch_bytes_ = 0;  // of each thread

  // [T] rows each, unless it says otherwise
  float *x_, *normed_, *qkv_, *attended_, *delta_, *gate_up_, *hidden_, *scale_;
  float *scores_, *probabilities_, *expert_weights_;
  float *slots_, *slot_gate_up_, *slot_hidden_, *slot_out_;  // [T * K]
  float* wanted_;                                            // [R]
  int64_t *ids_, *counts_;
  int32_t *starts_, *tokens_, *sources_, *token_slots_;
};

Step::Step(const ModelWeights& model, const StepBatch& batch, float* logits, int32_t* routes,
           StepSpace& space)
    : model_(model), shape_(model.shape), batch_(batch), logits_(logits), routes_(routes),
      space_(space), attention_(shape_.heads(), batch.sequences) {
  place_buffers();
  const Format linear = shape_.linear();
  reset(space_.normed, linear, shape_.D, &batch_.T);
  reset(space_.scored, Format::kFp32, shape_.D, &batch_.T);
  reset(space_.attended, linear, shape_.H * shape_.d, &batch_.T);
  reset(space_.mlp, linear, shape_.F, &batch_.T);
  reset(space_.shared, linear, shape_.shared_F, &batch_.T);
  reset(space_.wanted, shape_.high(), shape_.D, &batch_.R);
}

void Step::place_buffers() {
  const ModelShape& s = shape_;
  const int64_t T = batch_.T, N = T * s.K, width = std::max(s.F, s.shared_F);
  struct Want { float** at; int64_t count; };
  const Want wants[] = {
      {&x_, T * s.D}, {&normed_, T * s.D}, {&qkv_, T * (s.H + 2 * s.G) * s.d},
      {&attended_, T * s.H * s.d}, {&delta_, T * s.D}, {&gate_up_, 2 * T * width},
      {&hidden_, T * width}, {&scale_, T + batch_.R}, {&scores_, T * s.E},
      {&probabilities_, T * s.E}, {&expert_weights_, N}, {&slots_, N * s.D},
      {&slot_gate_up_, 2 * N * s.expert_F}, {&slot_hidden_, N * s.expert_F},
      {&slot_out_, N * s.D}, {&wanted_, batch_.R * s.D}};
  int64_t total = 0;
  for (const Want& want : wants) total += round_up(want.count, 16);
  float* next = space_.floats.get<float>(total);
  for (const Want& want : wants) {
    *want.at = next;
    next += round_up(want.count, 16);
  }
  ids_ = space_.integers.get<int64_t>(N + s.E + (T + 1 + 3 * N + 1) / 2);
  counts_ = ids_ + N;
  starts_ = reinterpret_cast<int32_t*>(counts_ + s.E);
  tokens_ = starts_ + T + 1;
  sources_ = tokens_ + N;
  token_slots_ = sources_ + N;
  for (int64_t t = 0; t <= T; ++t) starts_[t] = static_cast<int32_t>(t * s.K);

  scratch_bytes_ = attention_.write_scratch();
  for (const AttentionPiece& tile : attention_.tiles()) {
    scratch_bytes_ = std::max(scratch_bytes_, attention_.tile_scratch(tile));
  }
  scratch_bytes_ = round_up(scratch_bytes_, kAlignment);
  space_.scratch.get<uint8_t>(scratch_bytes_ * threads_);
}

// ---- Products ----

// Adds the tasks of left x packed, every group of rows with its own matrix.
void Step::plan(const LeftSide& left, Format format, const uint8_t* packed, int64_t K, int64_t N,
                float* c) {
  const std::vector<RowBlock>& blocks = left.blocks();
  if (blocks.empty()) return;
  const bool codes = format == Format::kFp8;
  const int64_t bytes = packed_bytes(format, K, N, codes), panels = panels_of(format, N);
  const int64_t count = static_cast<int64_t>(blocks.size());
  // Columns are shared out before rows: what is read of B then serves as many rows as possible.
  const int64_t groups = blocks.back().group - blocks.front().group + 1;
  const int64_t wanted = std::max(kTasksPerThread * threads_ / std::min(groups, count) + 1,
                                  bytes / kTaskBytes);
  const int64_t parts = std::max<int64_t>(1, std::min(wanted, panels / kFewestPanels));
  const int64_t width = round_up((panels + parts - 1) / parts, kFewestPanels);
  const int64_t height = std::max<int64_t>(1, count * parts / (kTasksPerThread * threads_));
  for (int64_t first = 0; first < count;) {
    int64_t last = first;
    while (last < count && blocks[last].group == blocks[first].group) ++last;
    const uint8_t* matrix = packed + blocks[first].group * bytes;
    for (int64_t panel = 0; panel < panels; panel += width) {
      for (int64_t block = first; block < last; block += height) {
        space_.products.push_back({&left, block, std::min(last, block + height), matrix, codes, N,
                                   panel, std::min(width, panels - panel), c});
      }
    }
    first = last;
  }
}

void Step::multiply(const ProductTask& task) {
  task.left->multiply(task.begin, task.end, task.packed, task.codes, task.N, task.panel,
                      task.panels, task.c);
}

// ---- Stages ----

int64_t Step::begin(int64_t stage) {
  const int64_t layer = stage / kLayerStages;
  space_.products.clear();
  if (layer < shape_.layers) {
    return begin_layer(static_cast<Stage>(stage % kLayerStages), model_.layers[layer]);
  }
  return begin_last(static_cast<LastStage>(stage - shape_.layers * kLayerStages));
}

int64_t Step::begin_layer(Stage stage, const LayerWeights& weights) {
  const ModelShape& s = shape_;
  const int64_t blocks = static_cast<int64_t>(space_.normed.blocks().size());
  const int64_t slot_blocks = weights.moe ? static_cast<int64_t>(space_.slots.blocks().size()) : 0;
  switch (stage) {
    case kQkv:
      plan(space_.normed, s.linear(), weights.qkv, s.D, (s.H + 2 * s.G) * s.d, qkv_);
      return planned();
    case kWritePages: return static_cast<int64_t>(attention_.writes().size());
    case kAttend: return static_cast<int64_t>(attention_.tiles().size());
    case kOut:
      plan(space_.attended, s.linear(), weights.o, s.H * s.d, s.D, delta_);
      return planned();
    case kGather:
      if (weights.moe) sort_experts();
      return weights.moe ? static_cast<int64_t>(space_.slots.blocks().size()) : 0;
    case kGateUp: return plan_gate_up(weights);
    case kActivate: return slot_blocks + (weights.gate_up ? blocks : 0);
    case kDown: return plan_down(weights);
    default: return blocks;
  }
}

void Step::layer_item(Stage stage, int64_t layer, int64_t i, int thread) {
  switch (stage) {
    case kNormInput: return norm_input(i, layer);
    case kWritePages: return write_pages(attention_.writes()[i], layer, thread);
    case kAttend:
      return attention_.attend(attention_.tiles()[i], qkv_, batch_.pages[layer], attended_,
                               nullptr, scratch(thread));
    case kPackAttended: return space_.attended.pack(i, attended_);
    case kNormPost: return norm_post(i, layer);
    case kGather: return gather(i);
    case kActivate: return activate(i, model_.layers[layer].moe);
    default: return multiply(space_.products[i]);
  }
}

int64_t Step::begin_last(LastStage stage) {
  switch (stage) {
    case kComplete: return static_cast<int64_t>(space_.normed.blocks().size());
    case kNormWanted: return static_cast<int64_t>(space_.wanted.blocks().size());
    case kHead:
      plan(space_.wanted, shape_.high(), model_.head, shape_.D, shape_.V, logits_);
      return planned();
    default: return -1;
  }
}

void Step::item(int64_t stage, int64_t i, int thread) {
  const int64_t layer = stage / kLayerStages, last = stage - shape_.layers * kLayerStages;
  if (last < 0) return layer_item(static_cast<Stage>(stage % kLayerStages), layer, i, thread);
  switch (static_cast<LastStage>(last)) {
    case kComplete: return complete(space_.normed.blocks()[i], shape_.layers - 1);
    case kNormWanted: return norm_wanted(i);
    default: return multiply(space_.products[i]);
  }
}

// ---- Attention ----

// x receives what layer `layer` adds last; before the first one, the embedding.
void Step::complete(const RowBlock& rows, int64_t layer) {
  const int64_t D = shape_.D;
  float* x = x_ + rows.row * D;
  if (layer < 0) {
    embedding_forward(batch_.ids + rows.row, model_.embedding, x, rows.rows, D);
  } else if (!model_.layers[layer].moe) {
    add(x, delta_ + rows.row * D, x, rows.rows * D);
  } else {
    const float* bases[] = {x, delta_ + rows.row * D};
    const Dispatch to = {rows.rows, batch_.T * shape_.K, tokens_, sources_, token_slots_,
                         starts_ + rows.row};
    combine(to, slot_out_, expert_weights_, bases, shape_.shared_F ? 2 : 1, x, D);
  }
}

void Step::norm_input(int64_t block, int64_t layer) {
  const RowBlock& rows = space_.normed.blocks()[block];
  const int64_t at = rows.row * shape_.D;
  complete(rows, layer - 1);
  norm_forward(x_ + at, nullptr, model_.layers[layer].input_norm, static_cast<float>(shape_.eps),
               nullptr, normed_ + at, scale_ + rows.row, rows.rows, shape_.D);
  space_.normed.pack(block, normed_);
}

// Positions of keys and queries, then the new keys and values go to their page.
void Step::write_pages(const AttentionPiece& piece, int64_t layer, int thread) {
  const int64_t d = shape_.d, heads = shape_.H / shape_.G;
  const int64_t stride = (shape_.H + 2 * shape_.G) * d;
  const Sequence& sequence = attention_.sequences()[piece.sequence];
  for (int64_t i = piece.begin; i < piece.begin + piece.count; ++i) {
    const float* rotations = batch_.rotations + (sequence.history + i) * d;
    float* token = qkv_ + (sequence.token + i) * stride;
    float *queries = token + piece.head * heads * d, *key = token + (shape_.H + piece.head) * d;
    rope(queries, rotations, false, queries, heads, 1, heads, d);
    rope(key, rotations, false, key, 1, 1, 1, d);
  }
  attention_.write(piece, qkv_, batch_.pages[layer], scratch(thread));
}

// ---- MLP and experts ----

void Step::norm_post(int64_t block, int64_t layer) {
  const LayerWeights& weights = model_.layers[layer];
  const RowBlock& rows = space_.normed.blocks()[block];
  const int64_t at = rows.row * shape_.D;
  norm_forward(x_ + at, delta_ + at, weights.post_norm, static_cast<float>(shape_.eps), x_ + at,
               normed_ + at, scale_ + rows.row, rows.rows, shape_.D);
  if (weights.gate_up) space_.normed.pack(block, normed_);
  if (weights.moe) route_rows(weights, layer, block);
}

// Chooses the experts of a block of rows.
void Step::route_rows(const LayerWeights& weights, int64_t layer, int64_t block) {
  const ModelShape& s = shape_;
  const RowBlock& rows = space_.scored.blocks()[block];
  space_.scored.pack(block, normed_);
  space_.scored.multiply(block, block + 1, weights.gate, false, s.E, 0,
                         panels_of(Format::kFp32, s.E), scores_);
  const int64_t first = rows.row, layers = s.layers - s.dense;
  route({rows.rows, s.E, s.K, scores_ + first * s.E, weights.bias, nullptr, ids_ + first * s.K,
         expert_weights_ + first * s.K, probabilities_ + first * s.E});
  for (int64_t t = first; routes_ && t < first + rows.rows; ++t) {
    for (int64_t k = 0; k < s.K; ++k) {
      routes_[(t * layers + layer - s.dense) * s.K + k] = static_cast<int32_t>(ids_[t * s.K + k]);
    }
  }
}

void Step::sort_experts() {
  sort_slots(ids_, starts_, batch_.T, shape_.E, tokens_, sources_, token_slots_, counts_);
  reset(space_.slots, shape_.linear(), shape_.D, counts_, shape_.E);
  reset(space_.slot_hidden, shape_.linear(), shape_.expert_F, counts_, shape_.E);
}

void Step::gather(int64_t block) {
  const int64_t D = shape_.D;
  const RowBlock& rows = space_.slots.blocks()[block];
  for (int64_t slot = rows.row; slot < rows.row + rows.rows; ++slot) {
    std::memcpy(slots_ + slot * D, normed_ + tokens_[slot] * D, D * sizeof(float));
  }
  space_.slots.pack(block, slots_);
}

int64_t Step::plan_gate_up(const LayerWeights& weights) {
  const ModelShape& s = shape_;
  if (weights.moe) {
    plan(space_.slots, s.linear(), weights.experts_gate_up, s.D, 2 * s.expert_F, slot_gate_up_);
  }
  if (weights.gate_up) {
    plan(space_.normed, s.linear(), weights.gate_up, s.D, 2 * (weights.moe ? s.shared_F : s.F),
         gate_up_);
  }
  return planned();
}

int64_t Step::plan_down(const LayerWeights& weights) {
  const ModelShape& s = shape_;
  if (weights.moe) {
    plan(space_.slot_hidden, s.linear(), weights.experts_down, s.expert_F, s.D, slot_out_);
  }
  if (weights.gate_up) {
    plan(weights.moe ? space_.shared : space_.mlp, s.linear(), weights.down,
         weights.moe ? s.shared_F : s.F, s.D, delta_);
  }
  return planned();
}

// Blocks of slots come first, then those of the dense MLP or the shared experts.
void Step::activate(int64_t block, bool moe) {
  const int64_t slot_blocks = moe ? static_cast<int64_t>(space_.slots.blocks().size()) : 0;
  const bool slots = block < slot_blocks;
  LeftSide& left = slots ? space_.slot_hidden : moe ? space_.shared : space_.mlp;
  const int64_t width = slots ? shape_.expert_F : moe ? shape_.shared_F : shape_.F;
  const float* gate_up = slots ? slot_gate_up_ : gate_up_;
  float* hidden = slots ? slot_hidden_ : hidden_;
  if (!slots) block -= slot_blocks;
  const RowBlock& rows = left.blocks()[block];
  swiglu_forward(gate_up + rows.row * 2 * width, hidden + rows.row * width, rows.rows, width);
  left.pack(block, hidden);
}

// ---- Head ----

void Step::norm_wanted(int64_t block) {
  const int64_t D = shape_.D;
  const RowBlock& rows = space_.wanted.blocks()[block];
  for (int64_t r = rows.row; r < rows.row + rows.rows; ++r) {
    norm_forward(x_ + batch_.rows[r] * D, nullptr, model_.norm, static_cast<float>(shape_.eps),
                 nullptr, wanted_ + r * D, scale_ + batch_.T + r, 1, D);
  }
  space_.wanted.pack(block, wanted_);
}

}  // namespace

void model_step(const ModelWeights& model, const StepBatch& batch, float* logits, int32_t* routes) {
  static thread_local StepSpace space;
  Step step(model, batch, logits, routes, space);
  run_program(step, step.thread_count());
}

}  // namespace paddle_ernie
