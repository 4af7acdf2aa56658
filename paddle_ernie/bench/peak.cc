// Peak rates of a core's arithmetic units: multiply-adds on registers only, nothing from memory.
// Compiled and run by peak.py; prints one JSON object of GFLOP/s on all OMP_NUM_THREADS threads.
#include <immintrin.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace {

constexpr long kRounds = 4'000'000;
constexpr int kRepeats = 5;
constexpr int kChains = 12;  // independent sums: more than latency times units of any core
volatile float sink;

__attribute__((target("avx2,fma"))) double fp32_avx2() {
  __m256 sums[kChains] = {}, x = _mm256_set1_ps(1.0001f), y = _mm256_set1_ps(0.9999f);
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      sum = _mm256_fmadd_ps(x, y, sum);
      asm volatile("" : "+v"(sum));  // keeps the chains apart: they are equal
    }
  }
#pragma GCC unroll 12
  for (auto& sum : sums) sink = sum[0];
  return kRounds * kChains * 16.0;
}

__attribute__((target("avx512f"))) double fp32_avx512() {
  __m512 sums[kChains] = {}, x = _mm512_set1_ps(1.0001f), y = _mm512_set1_ps(0.9999f);
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      sum = _mm512_fmadd_ps(x, y, sum);
      asm volatile("" : "+v"(sum));  // keeps the chains apart: they are equal
    }
  }
#pragma GCC unroll 12
  for (auto& sum : sums) sink = sum[0];
  return kRounds * kChains * 32.0;
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_dot() {
  __m512 sums[kChains] = {};
  __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80), y = x;
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, x, y);
      asm volatile("" : "+v"(sum));  // keeps the chains apart: they are equal
    }
  }
#pragma GCC unroll 12
  for (auto& sum : sums) sink = sum[0];
  return kRounds * kChains * 64.0;
}

#if __GNUC__ >= 11
struct alignas(64) TileConfig {
  unsigned char palette, start_row, reserved[14];
  unsigned short bytes[16];
  unsigned char rows[16];
};

__attribute__((target("amx-tile,amx-bf16"))) double bf16_tiles() {
  TileConfig config = {};
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) config.bytes[tile] = 64, config.rows[tile] = 16;
  asm volatile("ldtilecfg %0" ::"m"(config));
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
  for (long round = 0; round < kRounds / 16; ++round) {
    _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return kRounds / 16 * 4.0 * (2 * 16 * 16 * 32);
}

bool tiles_allowed() {  // the kernel wants to be asked: ARCH_REQ_XCOMP_PERM for XTILEDATA
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
#endif

double best_gflops(double (*work)()) {
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    double flops = 0;
    const auto start = std::chrono::steady_clock::now();
#pragma omp parallel reduction(+ : flops)
    flops += work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::max(best, flops / taken.count() / 1e9);
  }
  return best;
}

}  // namespace

int main() {
  double fp32 = 0, dot = 0, tiles = 0;
  if (__builtin_cpu_supports("avx512f")) {
    fp32 = best_gflops(fp32_avx512);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    fp32 = best_gflops(fp32_avx2);
  }
  if (__builtin_cpu_supports("avx512bf16")) dot = best_gflops(bf16_dot);
#if __GNUC__ >= 11
  if (AMX_SUPPORTED && tiles_allowed()) tiles = best_gflops(bf16_tiles);
#endif
  printf("{\"fp32\": %.1f, \"bf16_dot\": %.1f, \"bf16_tiles\": %.1f}\n", fp32, dot, tiles);
}
