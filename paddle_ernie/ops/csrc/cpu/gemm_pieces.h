// Products in pieces, for callers that run a team of threads themselves (see team.h): the left side
// is rounded once, by blocks of rows, and each block is then multiplied by any panels of B.
//
//   LeftSide left;
//   left.reset(format, power_of_two_scales, K, counts, groups);      one thread
//   left.pack(block, a)                  for every block, in any order, on any threads
//   left.multiply(begin, end, packed, ...)  for ranges of blocks, likewise, when all are packed
//
// The bits are those of gemm() and grouped_gemm().
#pragma once

#include <cstdint>
#include <vector>

#include "gemm_engine.h"
#include "workspace.h"

namespace paddle_ernie {

int64_t panels_of(Format format, int64_t N);

struct RowBlock {
  int64_t group, row, rows;  // rows of all groups are counted through
};

class LeftSide {
 public:
  // Rows of K in groups, each of which will be multiplied by a B of its own; `counts` may be 0.
  // Memory is kept from call to call.
  void reset(Format format, bool power_of_two_scales, int64_t K, const int64_t* counts,
             int64_t groups);

  const std::vector<RowBlock>& blocks() const { return blocks_; }

  // Rounds the block's rows of a [rows, K], which must stay as they are until they are multiplied.
  void pack(int64_t block, const float* a);

  // c [rows, N] = the product, for the rows of blocks [begin, end), which are of one group, and
  // the columns of `panels` panels from `panel` on. `codes`: B is packed by pack_codes.
  void multiply(int64_t begin, int64_t end, const uint8_t* packed_b, bool codes, int64_t N,
                int64_t panel, int64_t panels, float* c) const;

 private:
  Product product_of(int64_t block, int64_t part, int64_t N, int64_t panel, int64_t panels,
                     float* c) const;

  const Engine* engine_ = nullptr;
  Format format_ = Format::kFp32;
  bool power_of_two_scales_ = false;
  int64_t K_ = 0, parts_ = 0;  // parts: blocks of K
  std::vector<RowBlock> blocks_;
  std::vector<int64_t> offsets_;  // of the blocks' rounded rows, in `data_`
  std::vector<ABlock> packed_;    // [blocks][parts]
  Workspace data_, scales_;
};

}  // namespace paddle_ernie
