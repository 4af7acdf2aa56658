// The best of some tokens, without sorting them: as many as hold a given mass.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace paddle_ernie {

struct Candidate {
  float z;
  int32_t id;
  uint32_t weight;
};

inline bool better(const Candidate& a, const Candidate& b) {
  return a.z > b.z || (a.z == b.z && a.id < b.id);
}

inline uint64_t one_mass(const Candidate&) { return 1; }
inline uint64_t weight_mass(const Candidate& candidate) { return candidate.weight; }

template <class Mass>
uint64_t mass_of(const std::vector<Candidate>& candidates, const Mass& mass) {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates) total += mass(candidate);
  return total;
}

// Buckets of equal width from the best candidate to the last finite one: which holds the end of the
// `need`ed mass is known from the sums of all.
class Buckets {
 public:
  static constexpr int kCount = 256;

  explicit Buckets(const std::vector<Candidate>& candidates) {
    float low = std::numeric_limits<float>::infinity();
    high_ = -low;
    for (const Candidate& candidate : candidates) {
      high_ = std::max(high_, candidate.z);
      if (candidate.z < low && std::isfinite(candidate.z)) low = candidate.z;
    }
    per_logit_ = (kCount - 1) / (high_ - low);
  }

  // Never lower for a worse candidate. Equal logits or infinities may give NaN: the last bucket.
  int of(const Candidate& candidate) const {
    const float at = (high_ - candidate.z) * per_logit_;
    return at < kCount - 1 ? static_cast<int>(at) : kCount - 1;
  }

 private:
  float high_, per_logit_;
};

// The one with which the best of [first, last) reach the mass `need`, which all of them have.
template <class Mass>
Candidate last_needed(Candidate* first, Candidate* last, uint64_t need, const Mass& mass) {
  while (last - first > 1) {
    Candidate* middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, better);
    uint64_t half = 0;
    for (const Candidate* c = first; c < middle; ++c) half += mass(*c);
    if (half >= need) {
      last = middle;
    } else {
      need -= half;
      first = middle;
    }
  }
  return *first;
}

// Leaves the fewest best candidates that have the mass `need`, in the order they were in. All of
// them have as much. `edge` is scratch memory.
template <class Mass>
void keep_best(std::vector<Candidate>& candidates, uint64_t need, const Mass& mass,
               std::vector<Candidate>& edge) {
  const Buckets buckets(candidates);
  uint64_t sums[Buckets::kCount] = {};
  for (const Candidate& candidate : candidates) sums[buckets.of(candidate)] += mass(candidate);
  int bucket = 0;
  while (sums[bucket] < need) need -= sums[bucket++];
  edge.clear();
  for (const Candidate& candidate : candidates) {
    if (buckets.of(candidate) == bucket) edge.push_back(candidate);
  }
  const Candidate last = last_needed(edge.data(), edge.data() + edge.size(), need, mass);
  size_t count = 0;
  for (const Candidate& candidate : candidates) {  // without a branch: none could be predicted
    const bool worse = (candidate.z < last.z) | ((candidate.z == last.z) & (candidate.id > last.id));
    candidates[count] = candidate;
    count += !worse;
  }
  candidates.resize(count);
}

}  // namespace paddle_ernie
