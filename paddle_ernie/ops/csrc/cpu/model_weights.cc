#include "model_weights.h"

#include <cstring>

#include "gemm_engine.h"
#include "isa.h"
#include "workspace.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace paddle_ernie {
namespace {

constexpr int64_t kMagic = 0x6c65646f6d657031;

struct BlockHeader {
  int64_t magic, isa, bytes;
  ModelShape shape;
};

// Gives every part its place.
class Placer {
 public:
  std::vector<WeightPart> parts;
  int64_t end = round_up(sizeof(BlockHeader), kAlignment);

  void floats(int64_t n) { place({false, Format::kFp32, 1, 1, n, false, 0, n * 4}); }

  void matrix(Format format, int64_t K, int64_t N, bool transposed = false, int64_t count = 1) {
    const int64_t bytes = packed_bytes(format, K, N, format == Format::kFp8);
    place({true, format, count, K, N, transposed, 0, count * bytes});
  }

 private:
  void place(WeightPart part) {
    part.offset = end;
    end += round_up(part.bytes, kAlignment);
    parts.push_back(part);
  }
};

Placer placed(const ModelShape& s) {
  Placer place;
  const Format linear = s.linear();
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    place.floats(s.D);
    place.matrix(linear, s.D, (s.H + 2 * s.G) * s.d);
    place.matrix(linear, s.H * s.d, s.D);
    place.floats(s.D);
    const bool moe = layer >= s.dense;
    if (moe) {
      place.matrix(Format::kFp32, s.D, s.E, true);
      place.floats(s.E);
      place.matrix(linear, s.D, 2 * s.expert_F, false, s.E);
      place.matrix(linear, s.expert_F, s.D, false, s.E);
    }
    if (const int64_t width = moe ? s.shared_F : s.F) {
      place.matrix(linear, s.D, 2 * width);
      place.matrix(linear, width, s.D);
    }
  }
  place.floats(s.V * s.D);
  place.floats(s.D);
  place.matrix(s.high(), s.D, s.V, true);
  return place;
}

// Hands out the parts' addresses in their order.
class Reader {
 public:
  Reader(const std::vector<WeightPart>& parts, const uint8_t* block)
      : next_(parts.data()), block_(block) {}
  const uint8_t* matrix() { return block_ + (next_++)->offset; }
  const float* floats() { return reinterpret_cast<const float*>(matrix()); }

 private:
  const WeightPart* next_;
  const uint8_t* block_;
};

// Weights are read from end to end in every step: with pages of 2 MB a sixth faster from memory.
void use_large_pages(uint8_t* block, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kSize = 2 << 20;
  const uintptr_t start = reinterpret_cast<uintptr_t>(block);
  const uintptr_t first = (start + kSize - 1) / kSize * kSize;
  const uintptr_t end = (start + bytes) / kSize * kSize;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

}  // namespace

std::vector<WeightPart> weight_parts(const ModelShape& shape) { return placed(shape).parts; }

int64_t model_bytes(const ModelShape& shape) { return placed(shape).end; }

void pack_model(const ModelShape& shape, const std::vector<const float*>& sources, uint8_t* block) {
  const Placer place = placed(shape);
  const BlockHeader header = {kMagic, static_cast<int64_t>(isa()), place.end, shape};
  use_large_pages(block, place.end);
  std::memset(block, 0, round_up(sizeof(header), kAlignment));
  std::memcpy(block, &header, sizeof(header));
  for (size_t i = 0; i < place.parts.size(); ++i) {
    const WeightPart& part = place.parts[i];
    uint8_t* to = block + part.offset;
    if (part.matrix && part.format == Format::kFp8) {
      pack_codes(part.format, sources[i], part.count, part.K, part.N, shape.power_of_two_scales,
                 to);
    } else if (part.matrix) {
      pack_b_stack(part.format, sources[i], part.count, part.K, part.N, part.transposed,
                   shape.power_of_two_scales, to);
    } else {
      std::memcpy(to, sources[i], part.bytes);
      std::memset(to + part.bytes, 0, round_up(part.bytes, kAlignment) - part.bytes);
    }
  }
}

bool model_fits(const uint8_t* block, int64_t bytes) {
  BlockHeader header;
  if (bytes < static_cast<int64_t>(sizeof(header))) return false;
  std::memcpy(&header, block, sizeof(header));
  return header.magic == kMagic && header.isa == static_cast<int64_t>(isa()) &&
         header.bytes == bytes;
}

ModelWeights open_model(const uint8_t* block) {
  BlockHeader header;
  std::memcpy(&header, block, sizeof(header));
  const std::vector<WeightPart> parts = weight_parts(header.shape);
  Reader read(parts, block);
  ModelWeights model = {header.shape, {}, nullptr, nullptr, nullptr};
  for (int64_t i = 0; i < header.shape.layers; ++i) {
    LayerWeights layer = {};
    layer.input_norm = read.floats();
    layer.qkv = read.matrix();
    layer.o = read.matrix();
    layer.post_norm = read.floats();
    layer.moe = i >= header.shape.dense;
    if (layer.moe) {
      layer.gate = read.matrix();
      layer.bias = read.floats();
      layer.experts_gate_up = read.matrix();
      layer.experts_down = read.matrix();
    }
    if (layer.moe ? header.shape.shared_F : header.shape.F) {
      layer.gate_up = read.matrix();
      layer.down = read.matrix();
    }
    model.layers.push_back(layer);
  }
  model.embedding = read.floats();
  model.norm = read.floats();
  model.head = read.matrix();
  return model;
}

}  // namespace paddle_ernie
