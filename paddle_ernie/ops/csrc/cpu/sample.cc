#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cross_entropy.h"
#include "isa.h"
#include "parallel.h"
#include "sample_best.h"
#include "workspace.h"

#define PE_KERNEL_FILE "sample_kernels.inc"
#include "for_each_isa.h"

namespace paddle_ernie {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kOne = 1 << 30;  // the peak's weight

int64_t blocks(int64_t V, int64_t size) { return (V + size - 1) / size; }

// Philox4x32-10 (Salmon et al. 2011): the first two of its four words.
uint64_t random_bits(uint64_t seed, uint64_t position) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t x[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * x[0], second = uint64_t{0xCD9E8D57} * x[2];
    const uint32_t next[4] = {static_cast<uint32_t>(second >> 32) ^ x[1] ^ key[0],
                              static_cast<uint32_t>(second),
                              static_cast<uint32_t>(first >> 32) ^ x[3] ^ key[1],
                              static_cast<uint32_t>(first)};
    std::copy(next, next + 4, x);
    key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
  }
  return x[0] | static_cast<uint64_t>(x[1]) << 32;
}

// A whole number below `total`.
uint64_t random_below(uint64_t total, const DrawInts& draw) {
  const uint64_t bits = random_bits(draw.seed, draw.position);
  return static_cast<uint64_t>(static_cast<unsigned __int128>(bits) * total >> 64);
}

// One row of logits, with scratch memory that every row of a thread uses again.
struct Row {
  struct Scratch {
    Workspace peaks, sums, kept, ids, weights, order;
    std::vector<Candidate> candidates, edge;
  };

  const SampleKernels& kernels;
  const float* z;
  int64_t V;
  Scratch& scratch;
  float* peaks;
  float peak;   // NaN if a logit is
  float scale = 1.0f;  // 1 / temperature

  Row(const SampleKernels& kernels, const float* z, int64_t V, Scratch& scratch)
      : kernels(kernels), z(z), V(V), scratch(scratch) {
    const int64_t count = blocks(V, kPeakBlock);
    peaks = scratch.peaks.get<float>(count);
    const bool nan = kernels.peaks(z, V, peaks);
    peak = nan ? std::numeric_limits<float>::quiet_NaN() : *std::max_element(peaks, peaks + count);
  }

  bool valid() const { return std::isfinite(peak); }

  void set_temperature(float temperature) {
    scale = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  }

  int64_t likeliest() const {
    const int64_t block = std::find(peaks, peaks + blocks(V, kPeakBlock), peak) - peaks;
    return std::find(z + block * kPeakBlock, z + V, peak) - z;
  }

  int64_t draw_from_all(const DrawInts& draw) const {
    const uint64_t* sums = weight_sums();
    uint64_t target = random_below(total(sums), draw);
    int64_t block = 0;
    while (target >= sums[block]) target -= sums[block++];
    const int64_t start = block * kWeightBlock, n = std::min(kWeightBlock, V - start);
    uint32_t* weights = scratch.weights.get<uint32_t>(n);
    kernels.weights(z + start, n, peak, scale, weights);
    int64_t i = 0;
    while (target >= weights[i]) target -= weights[i++];
    return start + i;
  }

  int64_t draw_from(const std::vector<Candidate>& kept, const DrawInts& draw) const {
    uint64_t target = random_below(mass_of(kept, weight_mass), draw);
    auto candidate = kept.begin();
    while (target >= candidate->weight) target -= (candidate++)->weight;
    return candidate->id;
  }

  // What top-k, min-p and top-p leave, by ascending id.
  std::vector<Candidate>& kept(int64_t top_k, float min_p, float top_p) const {
    const double least = static_cast<double>(min_p) * kOne;
    float lowest = std::max(kth_peak(top_k), lowest_of_weight(std::ceil(least)));
    const bool only_top_p = top_k == 0 && min_p == 0 && top_p < 1;
    uint64_t need = 0;
    if (only_top_p) {
      const uint64_t all = total(weight_sums());
      need = share(top_p, all);
      // Tokens of this weight or less, were they all there are, would be what top-p leaves out.
      lowest = lowest_of_weight(static_cast<double>((all - need) / V) + 1);
    }
    std::vector<Candidate>& found = at_least(lowest);
    if (top_k && static_cast<uint64_t>(top_k) < found.size()) {
      keep_best(found, top_k, one_mass, scratch.edge);
    }
    found.erase(std::remove_if(found.begin(), found.end(),
                               [=](const Candidate& c) { return c.weight < least; }),
                found.end());
    if (top_p >= 1) return found;
    if (!only_top_p) need = share(top_p, mass_of(found, weight_mass));
    keep_best(found, need, weight_mass, scratch.edge);
    return found;
  }

  // The `count` best, best first.
  std::vector<Candidate>& best(int64_t count) const {
    std::vector<Candidate>& found = at_least(kth_peak(count));
    if (static_cast<uint64_t>(count) < found.size()) {
      keep_best(found, count, one_mass, scratch.edge);
    }
    std::sort(found.begin(), found.end(), better);
    return found;
  }

 private:
  static uint64_t share(float top_p, uint64_t total) {
    const double need = std::ceil(static_cast<double>(top_p) * static_cast<double>(total));
    return std::max<uint64_t>(1, static_cast<uint64_t>(need));
  }

  uint64_t* weight_sums() const {
    uint64_t* sums = scratch.sums.get<uint64_t>(blocks(V, kWeightBlock));
    kernels.weight_sums(z, V, peak, scale, sums);
    return sums;
  }

  uint64_t total(const uint64_t* sums) const {
    uint64_t total = 0;
    for (int64_t b = 0; b < blocks(V, kWeightBlock); ++b) total += sums[b];
    return total;
  }

  // At least k logits are this or more: as many blocks have such a peak.
  float kth_peak(int64_t k) const {
    const int64_t count = blocks(V, kPeakBlock);
    if (k == 0 || k > count) return -kInfinity;
    float* order = scratch.order.get<float>(count);
    std::copy(peaks, peaks + count, order);
    std::nth_element(order, order + k - 1, order + count, std::greater<float>());
    return order[k - 1];
  }

  // All logits below this weigh less than `weight`, a whole number. The margins cover rounding
  // here, in the weights' exponential and in its argument.
  float lowest_of_weight(double weight) const {
    if (weight < 1) return -kInfinity;
    const double x = std::log((weight - 0.5) / kOne) - 1e-3;
    const double bound = peak + x / scale;
    return static_cast<float>(bound - 1e-6 * (std::fabs(bound) + std::fabs(peak)));
  }

  std::vector<Candidate>& at_least(float lowest) const {
    float* logits = scratch.kept.get<float>(V + kPeakBlock);
    int32_t* ids = scratch.ids.get<int32_t>(V + kPeakBlock);
    int64_t count = 0;
    for (int64_t b = 0; b < blocks(V, kPeakBlock); ++b) {
      if (peaks[b] < lowest) continue;
      const int64_t start = b * kPeakBlock, n = std::min(kPeakBlock, V - start);
      count += kernels.at_least(z + start, n, lowest, start, logits + count, ids + count);
    }
    uint32_t* weights = scratch.weights.get<uint32_t>(count);
    kernels.weights(logits, count, peak, scale, weights);
    scratch.candidates.resize(count);
    for (int64_t i = 0; i < count; ++i) scratch.candidates[i] = {logits[i], ids[i], weights[i]};
    return scratch.candidates;
  }
};

int64_t draw(Row& row, const DrawFloats& floats, const DrawInts& ints) {
  if (!row.valid()) return kNoToken;
  if (floats.temperature == 0) return row.likeliest();
  row.set_temperature(floats.temperature);
  const int64_t top_k = ints.top_k < row.V ? ints.top_k : 0;
  if (top_k == 0 && floats.min_p == 0 && floats.top_p >= 1) return row.draw_from_all(ints);
  return row.draw_from(row.kept(top_k, floats.min_p, floats.top_p), ints);
}

// Calls body(r, row) for every row of logits, of which the first `width` count.
template <class Body>
void for_each_row(const LogitRows& rows, int64_t width, const Body& body) {
  const SampleKernels& kernels = PE_KERNELS(sample_kernels);
  parallel_for(rows.R, 1, [&](int64_t begin, int64_t end) {
    thread_local Row::Scratch scratch;
    for (int64_t r = begin; r < end; ++r) {
      Row row(kernels, rows.logits + r * rows.V, width, scratch);
      body(r, row);
    }
  });
}

}  // namespace

void sample(const LogitRows& rows, int64_t num_ids, const DrawFloats* floats, const DrawInts* ints,
            int64_t* ids, float* logprobs) {
  for_each_row(rows, num_ids, [&](int64_t r, Row& row) {
    ids[r] = draw(row, floats[r], ints[r]);
    logprobs[r] = 0.0f;
    const float temperature = floats[r].logprob_temperature;
    if (temperature == 0 || ids[r] == kNoToken) return;
    float entropy;
    logits_logprobs(row.z, 1, rows.V, {ids + r, &temperature}, logprobs + r, &entropy);
  });
}

void top_logprobs(const LogitRows& rows, const float* temperatures, int64_t count, int64_t* ids,
                  float* logprobs) {
  for_each_row(rows, rows.V, [&](int64_t r, Row& row) {
    int64_t* id = ids + r * count;
    float* logprob = logprobs + r * count;
    if (!row.valid()) {
      for (int64_t i = 0; i < count; ++i) id[i] = i, logprob[i] = row.peak - row.peak;  // NaN
      return;
    }
    thread_local Workspace workspace;
    float* log_p = workspace.get<float>(rows.V);
    log_softmax(row.z, 1, rows.V, temperatures + r, log_p);
    for (const Candidate& candidate : row.best(count)) {
      *id++ = candidate.id;
      *logprob++ = log_p[candidate.id];
    }
  });
}

void nucleus(const LogitRows& rows, const float* temperatures, const float* top_ps, float* out) {
  for_each_row(rows, rows.V, [&](int64_t r, Row& row) {
    float* masked = out + r * rows.V;
    std::fill(masked, masked + rows.V, -kInfinity);
    if (!row.valid()) return;
    row.set_temperature(temperatures[r]);
    for (const Candidate& candidate : row.kept(0, 0.0f, top_ps[r])) {
      masked[candidate.id] = candidate.z;
    }
  });
}

}  // namespace paddle_ernie
