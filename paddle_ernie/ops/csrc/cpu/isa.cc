#include "isa.h"

#include <atomic>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace paddle_ernie {
namespace {

#if defined(__x86_64__) && defined(__linux__)
// Tile registers are used only after asking the kernel for them.
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool bf16 = d & (1u << 22), tile = d & (1u << 24);
  return bf16 && tile && request_tiles();
}

bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

Isa detect() {
  __builtin_cpu_init();
  // F16C, the last feature of that level, came with or before AVX2 on every processor.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) {
    return Isa::kPortable;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx2;
  }
  if (!has_avx512_bf16()) return Isa::kAvx512;
  return has_amx_bf16() ? Isa::kAmx : Isa::kAvx512Bf16;
}
#else
Isa detect() { return Isa::kPortable; }
#endif

std::atomic<Isa>& current() {
  static std::atomic<Isa> level{detected_isa()};
  return level;
}

}  // namespace

Isa detected_isa() {
  static const Isa level = detect();
  return level;
}

Isa isa() { return current().load(std::memory_order_relaxed); }

bool set_isa(Isa level) {
  if (level > detected_isa()) return false;
  current().store(level);
  return true;
}

const char* isa_name(Isa level) {
  switch (level) {
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512_bf16";
    case Isa::kAmx: return "amx";
  }
  return "unknown";
}

}  // namespace paddle_ernie
