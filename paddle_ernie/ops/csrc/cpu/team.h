// A team of threads that walks through a chain of short stages. Starting threads anew for each
// stage (parallel.h) takes microseconds, and a decoding step has some ten stages per layer; going
// on to the next one takes a fraction of one.
//
//   struct Program {
//     int64_t begin(int64_t stage);                   items of a stage; -1: there are no more
//     void item(int64_t stage, int64_t i, int thread);
//   };
//
// Whoever finishes the last item of a stage begins the next. Nobody waits for a thread that has no
// item: when other processes take a core, the rest goes on without it, and it joins in later.
// At most 65,535 stages of 16 million items. Programs must not throw: the others would wait for
// ever.
#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

#include "parallel.h"

namespace paddle_ernie {

template <class Program>
class Team {
 public:
  explicit Team(Program& program) : program_(program) {}

  // Called by every thread, when begin_first has returned; comes back at the end of the program.
  void work(int thread) noexcept {
    for (int idle = 0;;) {
      uint64_t now = state_.load(std::memory_order_acquire);
      if (now == kOver) return;
      const uint64_t count = now >> kItemBits & kMostItems, i = now & kMostItems;
      if (i == count) {
        wait(++idle);
      } else if (state_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) {
        idle = 0;
        const int64_t stage = static_cast<int64_t>(now >> 2 * kItemBits);
        program_.item(stage, static_cast<int64_t>(i), thread);
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) go_on(stage, thread);
      }
    }
  }

  void begin_first() noexcept { go_on(-1, 0); }

 private:
  void go_on(int64_t stage, int thread) noexcept {
    int64_t count;
    do {
      count = program_.begin(++stage);
      // What a single item has to do takes less than handing it out.
      if (count == 1) program_.item(stage, 0, thread);
    } while (count == 0 || count == 1);
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t first = (static_cast<uint64_t>(stage) << kItemBits | count) << kItemBits;
    state_.store(count < 0 ? kOver : first, std::memory_order_release);
  }

  static void wait(int rounds) {
    // With more threads than free cores, whoever is awaited may need this one.
    if (rounds > kSpins) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  // The state holds the stage, its items, and the next of them.
  static constexpr int kItemBits = 24;
  static constexpr uint64_t kMostItems = (uint64_t{1} << kItemBits) - 1;
  static constexpr uint64_t kOver = ~uint64_t{0};
  static constexpr int kSpins = 1000;  // some tens of microseconds
  Program& program_;
  alignas(64) std::atomic<uint64_t> state_{kOver};
  alignas(64) std::atomic<uint64_t> finished_{0};
};

// On `threads` threads at most, counted from 0.
template <class Program>
void run_program(Program& program, int threads) noexcept {
  Team<Program> team(program);
  team.begin_first();
  if (threads == 1 || in_parallel()) return team.work(0);
#pragma omp parallel num_threads(threads)
  team.work(omp_get_thread_num());
}

}  // namespace paddle_ernie
