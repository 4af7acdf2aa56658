#include "parallel.h"

#include <omp.h>

namespace paddle_ernie {
namespace {

std::atomic<int>& setting() {
  static std::atomic<int> count{omp_get_max_threads()};
  return count;
}

}  // namespace

int threads() { return setting().load(std::memory_order_relaxed); }

void set_threads(int count) { setting().store(std::max(1, count)); }

bool in_parallel() { return omp_in_parallel(); }

}  // namespace paddle_ernie
