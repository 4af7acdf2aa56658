// One function of vec.inc over the floats of standard input, at one instruction set:
// vec_probe FUNCTION LEVEL < floats > floats
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define PE_KERNEL_FILE "vec_probe.inc"
#include "for_each_isa.h"

using Function = void (*)(const float* x, float* y, long n);

static Function choose(const std::string& name, int level) {
#define CHOOSE(NAME)                                          \
  if (name == #NAME) {                                        \
    if (level == 0) return paddle_ernie::portable::NAME##_of; \
    PROBE_X86(NAME)                                           \
  }
#if defined(__x86_64__)
#define PROBE_X86(NAME)                                   \
  if (level == 1) return paddle_ernie::avx2::NAME##_of;   \
  if (level == 2) return paddle_ernie::avx512::NAME##_of;
#else
#define PROBE_X86(NAME)
#endif
  CHOOSE(exp)
  CHOOSE(sigmoid)
  CHOOSE(round_bf16)
  CHOOSE(round_e4m3)
  CHOOSE(sum)
  std::abort();
}

int main(int, char** arguments) {
  std::vector<float> x;
  for (float value; fread(&value, sizeof value, 1, stdin) == 1;) x.push_back(value);
  std::vector<float> y(x.size());
  choose(arguments[1], std::atoi(arguments[2]))(x.data(), y.data(), x.size());
  fwrite(y.data(), sizeof(float), y.size(), stdout);
}
