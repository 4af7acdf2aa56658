#include "paged_batch.h"

#include <sstream>

namespace paddle_ernie {
namespace {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace

std::string read_batch(const PagedBatch& batch, int64_t T, int64_t num_pages,
                       std::vector<Sequence>* sequences) {
  for (int64_t b = 0; b < batch.B; ++b) {
    const int64_t start = batch.starts[b], stop = batch.starts[b + 1], tokens = stop - start;
    const int64_t length = batch.lengths[b], end = length + tokens;
    if (start < 0 || tokens < 0 || stop > T) {
      return text("tokens ", start, " to ", stop, " of sequence ", b, " are not among the ", T,
                  " of the batch");
    }
    if (length < 0 || end > batch.most * kPage) {
      return text("sequence ", b, " would grow to ", end, " positions; its table has room for ",
                  batch.most * kPage);
    }
    if (!tokens) continue;
    const int32_t* ids = batch.tables + b * batch.most;
    for (int64_t page = 0; page * kPage < end; ++page) {
      if (ids[page] < 0 || ids[page] >= num_pages) {
        return text("page ", page, " of sequence ", b, " is ", ids[page], "; expected 0 to ",
                    num_pages - 1);
      }
    }
    sequences->push_back({start, tokens, length, ids});
  }
  return "";
}

}  // namespace paddle_ernie
