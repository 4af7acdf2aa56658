// What one thread does at a time in attention: the interface between attention.cc and its kernels.
#pragma once

#include "attention.h"
#include "workspace.h"

namespace paddle_ernie {

constexpr int64_t kSegmentPages = 8;  // keys of one backward task: their gradients stay in the L2

// A thread's scratch memory, given out piece by piece.
struct Scratch {
  uint8_t* at;

  void* take(size_t bytes) {
    void* piece = at;
    at += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  float* floats(int64_t count) { return static_cast<float*>(take(count * sizeof(float))); }
  uint16_t* halves(int64_t count) { return static_cast<uint16_t*>(take(count * sizeof(uint16_t))); }
};

// Tokens to put into a page, from position `offset` on. Rows of keys and values lie `stride` apart.
struct PageWrite {
  const float* keys;
  const float* values;
  int64_t stride, offset, count;
  uint8_t* page;
};

// Queries of consecutive positions, with the R heads that share a key head.
struct QueryTile {
  const float* query;       // [queries][R][d], tokens `query_stride` apart
  int64_t query_stride, queries, position;
  const uint8_t* pages;     // of the key head; page id i is page_stride * i further
  int64_t page_stride;
  const int32_t* ids;
  float* out;               // as query, tokens H * d apart
  float* lse;               // [queries][R], tokens H apart; or null
};

// The part of a document's gradient that comes from the keys of one segment and one key head.
struct SegmentTask {
  const float* qkv;         // the document's first token, as are out, lse and dout
  const float* out;
  const float* lse;
  const float* dout;
  float* dqkv;
  int64_t tokens, head;
  int64_t first_key, keys;  // positions
  float* dquery;            // [tokens - first_key][R][d]; null: this segment writes to dqkv
};

struct AttentionKernels {
  int64_t tile_rows;        // R * queries of a tile, about
  size_t (*write_scratch)(const Heads&);
  void (*write)(const Heads&, const PageWrite&, Scratch);
  size_t (*attend_scratch)(const Heads&, int64_t queries);
  void (*attend)(const Heads&, const QueryTile&, Scratch);
  size_t (*backward_scratch)(const Heads&, int64_t queries);
  void (*backward)(const Heads&, const SegmentTask&, int64_t queries, Scratch);
};

// Tile registers; only where isa() is kAmx and the format bf16.
const AttentionKernels& amx_attention_kernels();

}  // namespace paddle_ernie
