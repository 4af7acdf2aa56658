#include "attention.h"

#include <algorithm>
#include <utility>

#include "attention_tasks.h"
#include "isa.h"
#include "parallel.h"

#define PE_KERNEL_FILE "attention_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {
namespace {

// Below this many (query row, page) pairs a team of threads costs more than it saves.
constexpr int64_t kSmallWork = 128;
// Pages of one wave of documents: 32 MB at 64 columns in fp32.
constexpr int64_t kWavePages = 1024;

const AttentionKernels& kernels_for(const Heads& heads) {
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 11
  if (heads.bf16() && isa() == Isa::kAmx) return amx_attention_kernels();
#endif
  return PE_KERNELS(attention_kernels);
}

uint8_t* thread_scratch(size_t bytes) {
  thread_local Workspace workspace;
  return workspace.get<uint8_t>(bytes);
}

int64_t pages_of(int64_t positions) { return (positions + kPage - 1) / kPage; }

template <class Task>
void sort_by_rank(std::vector<Task>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.rank > b.rank; });
}

template <class Task, class Body>
void run_all(const std::vector<Task>& tasks, bool alone, const Body& body) {
  const int64_t count = static_cast<int64_t>(tasks.size());
  parallel_for(count, alone ? count : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(tasks[i]);
  });
}

// New tokens [begin, begin + count) that lie in one page.
std::vector<AttentionPiece> page_pieces(const Heads& heads,
                                        const std::vector<Sequence>& sequences) {
  std::vector<AttentionPiece> pieces;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = sequences[i];
    for (int64_t begin = 0; begin < sequence.tokens;) {
      const int64_t room = kPage - (sequence.history + begin) % kPage;
      const int64_t count = std::min(room, sequence.tokens - begin);
      for (int64_t g = 0; g < heads.G; ++g) {
        pieces.push_back({static_cast<int64_t>(i), g, begin, count, 0, 0});
      }
      begin += count;
    }
  }
  return pieces;
}

// Pieces of one sequence and head follow each other, so that its pages stay in a core's cache; the
// longest sequence comes first, its last queries first, so that threads end together.
std::vector<AttentionPiece> query_pieces(const Heads& heads,
                                         const std::vector<Sequence>& sequences,
                                         int64_t queries) {
  std::vector<AttentionPiece> pieces;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = sequences[i];
    const int64_t last = (sequence.tokens - 1) / queries * queries;
    for (int64_t g = 0; g < heads.G; ++g) {
      for (int64_t begin = last; begin >= 0; begin -= queries) {
        const int64_t count = std::min(queries, sequence.tokens - begin);
        const int64_t cost = count * heads.shared() * pages_of(sequence.history + begin + count);
        pieces.push_back({static_cast<int64_t>(i), g, begin, count, cost,
                          sequence.history + sequence.tokens});
      }
    }
  }
  return pieces;
}

int64_t tile_queries(const Heads& heads, const AttentionKernels& kernels) {
  return std::max<int64_t>(1, kernels.tile_rows / heads.shared());
}

template <class Task>
bool is_small(const std::vector<Task>& tasks) {
  int64_t cost = 0;
  for (const Task& task : tasks) cost += task.cost;
  return cost < kSmallWork;
}

PageWrite page_write(const Heads& heads, const float* qkv, uint8_t* pages,
                     const Sequence& sequence, const AttentionPiece& piece) {
  const int64_t position = sequence.history + piece.begin, stride = heads.count() * heads.d;
  const float* token = qkv + (sequence.token + piece.begin) * stride;
  const int64_t page = sequence.pages[position / kPage] * heads.G + piece.head;
  return {token + (heads.H + piece.head) * heads.d,
          token + (heads.H + heads.G + piece.head) * heads.d,
          stride, position % kPage, piece.count, pages + page * heads.page_bytes()};
}

QueryTile query_tile(const Heads& heads, const float* qkv, const uint8_t* pages,
                     const Sequence& sequence, const AttentionPiece& piece, float* out,
                     float* lse) {
  const int64_t token = sequence.token + piece.begin, first = piece.head * heads.shared();
  const int64_t stride = heads.count() * heads.d, page_bytes = heads.page_bytes();
  return {qkv + token * stride + first * heads.d, stride, piece.count,
          sequence.history + piece.begin, pages + piece.head * page_bytes, heads.G * page_bytes,
          sequence.pages, out + (token * heads.H + first) * heads.d,
          lse ? lse + token * heads.H + first : nullptr};
}

}  // namespace

AttentionPieces::AttentionPieces(const Heads& heads, std::vector<Sequence> sequences)
    : heads_(heads), sequences_(std::move(sequences)) {
  writes_ = page_pieces(heads_, sequences_);
  tiles_ = query_pieces(heads_, sequences_, tile_queries(heads_, kernels_for(heads_)));
  sort_by_rank(tiles_);
}

bool AttentionPieces::small() const { return is_small(tiles_); }

size_t AttentionPieces::write_scratch() const { return kernels_for(heads_).write_scratch(heads_); }

size_t AttentionPieces::tile_scratch(const AttentionPiece& tile) const {
  return kernels_for(heads_).attend_scratch(heads_, tile.count);
}

void AttentionPieces::write(const AttentionPiece& piece, const float* qkv, uint8_t* pages,
                            uint8_t* scratch) const {
  const Sequence& sequence = sequences_[piece.sequence];
  kernels_for(heads_).write(heads_, page_write(heads_, qkv, pages, sequence, piece), {scratch});
}

void AttentionPieces::attend(const AttentionPiece& tile, const float* qkv, const uint8_t* pages,
                             float* out, float* lse, uint8_t* scratch) const {
  const Sequence& sequence = sequences_[tile.sequence];
  kernels_for(heads_).attend(heads_, query_tile(heads_, qkv, pages, sequence, tile, out, lse),
                             {scratch});
}

void attention_forward(const Heads& heads, const float* qkv, const std::vector<Sequence>& sequences,
                       uint8_t* pages, float* out, float* lse) {
  const AttentionPieces pieces(heads, sequences);
  const bool small = pieces.small();
  run_all(pieces.writes(), small, [&](const AttentionPiece& piece) {
    pieces.write(piece, qkv, pages, thread_scratch(pieces.write_scratch()));
  });
  run_all(pieces.tiles(), small, [&](const AttentionPiece& tile) {
    pieces.attend(tile, qkv, pages, out, lse, thread_scratch(pieces.tile_scratch(tile)));
  });
}

void documents_forward(const Heads& heads, const float* qkv, const std::vector<int64_t>& starts,
                       float* out, float* lse) {
  static thread_local Workspace workspace;
  const size_t documents = starts.size() - 1;
  for (size_t first = 0; first < documents;) {
    int64_t count = 0;
    size_t last = first;
    while (last < documents) {
      const int64_t more = pages_of(starts[last + 1] - starts[last]);
      if (last > first && (count + more) * heads.G > kWavePages) break;
      count += more;
      ++last;
    }
    std::vector<int32_t> ids(count);
    for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i);
    std::vector<Sequence> sequences;
    for (const int32_t* pages = ids.data(); first < last; ++first) {
      const int64_t tokens = starts[first + 1] - starts[first];
      sequences.push_back({starts[first], tokens, 0, pages});
      pages += pages_of(tokens);
    }
    uint8_t* pages = workspace.get<uint8_t>(count * heads.G * heads.page_bytes());
    attention_forward(heads, qkv, sequences, pages, out, lse);
  }
}

namespace {

struct Segment {
  int64_t start, tokens, head, first_key, cost, rank;
  int64_t dquery;  // offset of its own dQ; -1: it writes to dqkv
};

// dQ of all but the first segment of a document waits in `floats` extra numbers.
std::vector<Segment> segments_of(const Heads& heads, const std::vector<int64_t>& starts,
                                 int64_t* floats) {
  std::vector<Segment> segments;
  *floats = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t tokens = starts[i + 1] - starts[i];
    for (int64_t head = 0; head < heads.G; ++head) {
      for (int64_t key = 0; key < tokens; key += kSegmentPages * kPage) {
        const int64_t seen = std::min(tokens - key, kSegmentPages * kPage);
        const int64_t cost = heads.shared() * pages_of(seen * (tokens - key));
        segments.push_back({starts[i], tokens, head, key, cost, cost, key ? *floats : -1});
        if (key) *floats += (tokens - key) * heads.shared() * heads.d;
      }
    }
  }
  return segments;
}

// dqkv += the dQ of later segments, in the order of keys.
void add_queries(const Heads& heads, const Segment& segment, const float* dquery, float* dqkv) {
  const int64_t numbers = heads.shared() * heads.d, stride = heads.count() * heads.d;
  const float* from = dquery + segment.dquery;
  float* to = dqkv + (segment.start + segment.first_key) * stride + segment.head * numbers;
  for (int64_t token = segment.first_key; token < segment.tokens; ++token) {
    for (int64_t i = 0; i < numbers; ++i) to[i] += from[i];
    from += numbers;
    to += stride;
  }
}

}  // namespace

void documents_backward(const Heads& heads, const float* qkv, const std::vector<int64_t>& starts,
                        const float* out, const float* lse, const float* dout, float* dqkv) {
  static thread_local Workspace workspace;
  const AttentionKernels& kernels = kernels_for(heads);
  const int64_t queries = tile_queries(heads, kernels);
  int64_t floats = 0;
  const std::vector<Segment> segments = segments_of(heads, starts, &floats);
  float* dquery = workspace.get<float>(floats);
  std::vector<Segment> tasks = segments;
  sort_by_rank(tasks);
  run_all(tasks, is_small(tasks), [&](const Segment& segment) {
    const int64_t keys = std::min(segment.tokens - segment.first_key, kSegmentPages * kPage);
    const int64_t stride = heads.count() * heads.d, start = segment.start;
    const SegmentTask task = {
        qkv + start * stride, out + start * heads.H * heads.d, lse + start * heads.H,
        dout + start * heads.H * heads.d, dqkv + start * stride, segment.tokens, segment.head,
        segment.first_key, keys, segment.dquery < 0 ? nullptr : dquery + segment.dquery};
    kernels.backward(heads, task, queries,
                     {thread_scratch(kernels.backward_scratch(heads, queries))});
  });
  if (!floats) return;
  parallel_for(heads.G, 1, [&](int64_t begin, int64_t end) {
    for (const Segment& segment : segments) {
      const bool mine = begin <= segment.head && segment.head < end;
      if (mine && segment.dquery >= 0) add_queries(heads, segment, dquery, dqkv);
    }
  });
}

}  // namespace paddle_ernie
