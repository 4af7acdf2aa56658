// Runs the CUDA kernels on the CPU: what the test compiles in place of CUDA's headers and of
// hopper.cuh. A thread block is so many threads of the machine, blocks run one after the other.
//
// Emulated as documented: copies arrive only when they are waited for; a product reads shared
// memory through its descriptors, swizzle included, and leaves each thread its own accumulators.
#pragma once

#include <pthread.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline thread_local dim3 threadIdx, blockIdx, gridDim;

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaDevAttrMultiProcessorCount };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int*) { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) {
  *value = 1;  // so that a thread block has several tiles to walk over
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) {
  return cudaSuccess;
}

inline pthread_barrier_t emulated_block, emulated_warps[32];
inline float emulated_lanes[32][32];

inline void launch(dim3 grid, int threads, const std::function<void()>& kernel) {
  pthread_barrier_init(&emulated_block, nullptr, threads);
  for (auto& warp : emulated_warps) pthread_barrier_init(&warp, nullptr, 32);
  std::vector<std::thread> running;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        for (int t = 0; t < threads; ++t) {
          running.emplace_back([=, &kernel] {
            threadIdx = dim3(t, 0, 0), blockIdx = dim3(x, y, z), gridDim = grid;
            kernel();
          });
        }
        for (auto& thread : running) thread.join();
        running.clear();
      }
}

inline void __syncthreads() { pthread_barrier_wait(&emulated_block); }

inline float __shfl_xor_sync(unsigned, float x, int mask) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  emulated_lanes[warp][lane] = x;
  pthread_barrier_wait(&emulated_warps[warp]);
  const float other = emulated_lanes[warp][lane ^ mask];
  pthread_barrier_wait(&emulated_warps[warp]);
  return other;
}

// ---- numbers

inline uint32_t __float_as_uint(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
using std::isnan;

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const uint32_t u = __float_as_uint(x);
  if (x != x) return {0x7fff};
  return {static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

inline float e4m3_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return NAN;
  const float size = exponent ? std::ldexp(8.0f + mantissa, exponent - 10)
                              : std::ldexp(static_cast<float>(mantissa), -9);
  return code & 0x80 ? -size : size;
}

enum { __NV_SATFINITE, __NV_E4M3 };
inline uint8_t __nv_cvt_float_to_fp8(float x, int, int) {
  if (x != x) return 0x7f;
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {  // the nearest; of two equally near the even code
    const float near = std::fabs(e4m3_value(code) - std::fabs(x));
    const float nearest = std::fabs(e4m3_value(best) - std::fabs(x));
    if (near < nearest || (near == nearest && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

// ---- hopper.cuh

namespace paddle_ernie {
namespace cuda {

constexpr int kAccumulators = 64;
struct Fp8 {
  static constexpr int kBytes = 1;
  static float value(const uint8_t* p) { return e4m3_value(*p); }
};
struct Bf16 {
  static constexpr int kBytes = 2;
  static float value(const uint8_t* p) {
    __nv_bfloat16 x;
    std::memcpy(&x, p, 2);
    return __bfloat162float(x);
  }
};

inline uint8_t shared[200 << 10];  // every kernel's dynamic shared memory
constexpr uint32_t kSharedAt = 48;  // its address: as awkward as a compiler may choose it
inline uint32_t shared_address(const void*) { return kSharedAt; }
inline uint8_t* shared_byte(uint32_t address) { return shared + (address - kSharedAt); }

struct Copy {
  uint32_t to;
  const void* from;
  bool inside;
};
inline thread_local std::vector<Copy> uncommitted;
inline thread_local std::deque<std::vector<Copy>> groups;

inline void copy_16(uint32_t to, const void* from, bool inside) {
  uncommitted.push_back({to, from, inside});
}
inline void commit_copies() { groups.push_back(std::move(uncommitted)), uncommitted.clear(); }
template <int pending>
void wait_for_copies() {
  for (; groups.size() > pending; groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      std::memset(shared_byte(copy.to), 0, 16);
      if (copy.inside) std::memcpy(shared_byte(copy.to), copy.from, 16);
    }
  }
}

// Sixteen-byte chunks are exchanged by bits 7 to 9 of their address.
inline const uint8_t* described(uint64_t descriptor, int row, int byte) {
  const uint32_t start = (descriptor & 0x3fff) << 4, eight_rows = (descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1) return nullptr;  // 128-byte swizzle
  const uint32_t address = start + row / 8 * eight_rows + row % 8 * 128 + byte;
  return shared_byte(address ^ (address >> 7 & 7) << 4);
}

template <class Format>
void multiply(Format, float (&d)[kAccumulators], uint64_t a, uint64_t b, int add) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < kAccumulators; ++i) {
    const int row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
    const int column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    float sum = add ? d[i] : 0.0f;
    for (int byte = 0; byte < 32; byte += Format::kBytes) {
      sum += Format::value(described(a, row, byte)) * Format::value(described(b, column, byte));
    }
    d[i] = sum;
  }
}
inline void begin_products(float (&)[kAccumulators]) {}
inline void finish_products(float (&)[kAccumulators]) {}

}  // namespace cuda
}  // namespace paddle_ernie
