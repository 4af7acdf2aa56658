// Causal attention with grouped queries over pages of keys and values, for training, chunked
// prefill and decoding alike.
//
//   qkv [T, H + 2G, d]     H query heads, then G key heads, then G value heads
//
//   sequence  = positions 0, 1, 2, ... of one document: those in the cache, then new tokens of qkv
//   page      = 64 consecutive positions of a sequence, of one key head
//
// A query adds its keys in rising order, page by page, and never touches a key after itself. So its
// result does not depend on what else is computed with it, on chunks, or on the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gemm.h"

namespace paddle_ernie {

constexpr int64_t kPage = 64;  // positions

// What stays the same over a call. Format kBf16: q, k, v, p and their gradients are rounded to bf16
// where they are multiplied; softmax and sums are fp32. kFp8 is not for attention.
struct Heads {
  int64_t H, G, d;
  Format format;

  int64_t shared() const { return H / G; }    // R: query heads per key head
  int64_t count() const { return H + 2 * G; }
  bool bf16() const { return format == Format::kBf16; }
  // d filled up with zeros: a tile of bf16 holds 32 columns.
  int64_t width() const { return (d + 31) / 32 * 32; }
  size_t number_bytes() const { return bf16() ? 2 : 4; }
  // A page holds its keys, then its values:
  //   fp32   keys [width][64]           values [64][width]
  //   bf16   keys [width / 2][64][2]    values [32][width][2]
  size_t half_page_bytes() const { return kPage * width() * number_bytes(); }
  size_t page_bytes() const { return 2 * half_page_bytes(); }
};

struct Sequence {
  int64_t token;         // its first new token, a row of qkv
  int64_t tokens;        // new ones
  int64_t history;       // positions that its pages hold already
  const int32_t* pages;  // ids of its pages, in order; room for history + tokens
};

// Part of a sequence's new tokens, [begin, begin + count), for one key head.
struct AttentionPiece {
  int64_t sequence, head, begin, count;
  int64_t cost, rank;  // rows times pages; pieces of higher rank come first
};

// attention_forward in pieces, for callers that run a team of threads themselves (see team.h):
// every write, and when all are done every tile; in any order, on any threads.
class AttentionPieces {
 public:
  AttentionPieces(const Heads& heads, std::vector<Sequence> sequences);

  const std::vector<Sequence>& sequences() const { return sequences_; }
  const std::vector<AttentionPiece>& writes() const { return writes_; }
  const std::vector<AttentionPiece>& tiles() const { return tiles_; }
  bool small() const;                 // threads would cost more than they save
  size_t write_scratch() const;       // bytes, aligned to kAlignment
  size_t tile_scratch(const AttentionPiece& tile) const;

  void write(const AttentionPiece& piece, const float* qkv, uint8_t* pages,
             uint8_t* scratch) const;
  void attend(const AttentionPiece& tile, const float* qkv, const uint8_t* pages, float* out,
              float* lse, uint8_t* scratch) const;

 private:
  const Heads heads_;
  const std::vector<Sequence> sequences_;
  std::vector<AttentionPiece> writes_, tiles_;
};

// Writes the new keys and values into `pages` [id][G][page_bytes]; then the new queries attend.
// out [T, H, d]. lse [T, H], or null, receives log2 of the softmax's denominator.
void attention_forward(const Heads& heads, const float* qkv, const std::vector<Sequence>& sequences,
                       uint8_t* pages, float* out, float* lse);

// Documents without history: consecutive runs of tokens, from starts[i] to starts[i + 1].
void documents_forward(const Heads& heads, const float* qkv, const std::vector<int64_t>& starts,
                       float* out, float* lse);

// dqkv [T, H + 2G, d] is written whole.
void documents_backward(const Heads& heads, const float* qkv, const std::vector<int64_t>& starts,
                        const float* out, const float* lse, const float* dout, float* dqkv);

}  // namespace paddle_ernie
