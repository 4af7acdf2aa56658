// Loops over threads. Pieces are handed out as threads become free, so one slow thread does not
// hold up the rest; results must therefore not depend on which thread computes what.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

namespace paddle_ernie {

// Threads of the next loop: set_threads, at first OMP_NUM_THREADS or the number of cores.
int threads();
void set_threads(int count);

// Whether the caller is inside a piece of a loop; a loop in there runs on its thread alone.
bool in_parallel();

// Calls body(begin, end) for consecutive pieces of [0, n), each of `grain` items (the last one
// shorter). Pieces do not depend on the number of threads. After an exception the pieces not yet
// begun are left out, and it passes to the caller.
template <class Body>
void parallel_for(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  const int64_t pieces = (n + grain - 1) / grain;
  const int team = static_cast<int>(std::min<int64_t>(threads(), pieces));
  if (team <= 1 || in_parallel()) {
    for (int64_t piece = 0; piece < pieces; ++piece) {
      body(piece * grain, std::min(n, (piece + 1) * grain));
    }
    return;
  }
  // A counter instead of `omp for schedule(dynamic)`: Intel's OpenMP library has GCC's entry point
  // for parallel regions, but not for that schedule.
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failing;
#pragma omp parallel num_threads(team)
  {
    try {
      for (int64_t piece = next++; piece < pieces; piece = next++) {
        body(piece * grain, std::min(n, (piece + 1) * grain));
      }
    } catch (...) {
      next = pieces;
      const std::lock_guard<std::mutex> lock(failing);
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace paddle_ernie
