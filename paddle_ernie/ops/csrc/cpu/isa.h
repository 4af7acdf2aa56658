// Which instruction set the kernels use: the best the processor has, or a lower one on request.
#pragma once

namespace paddle_ernie {

// In rising order; each includes the ones before it. Bits of results may differ between levels.
enum class Isa { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3, kAmx = 4 };

// What this processor and operating system offer.
Isa detected_isa();

// What kernels use now.
Isa isa();

// Returns false, and changes nothing, if the processor lacks it.
bool set_isa(Isa level);

const char* isa_name(Isa level);

// The kernel table of the current level. `family` is a name that every namespace of
// for_each_isa.h defines.
#if defined(__x86_64__)
#define PE_KERNELS(family)                                       \
  (::paddle_ernie::isa() >= ::paddle_ernie::Isa::kAvx512         \
       ? ::paddle_ernie::avx512::family                          \
       : ::paddle_ernie::isa() == ::paddle_ernie::Isa::kAvx2     \
             ? ::paddle_ernie::avx2::family                      \
             : ::paddle_ernie::portable::family)
#else
#define PE_KERNELS(family) (::paddle_ernie::portable::family)
#endif

}  // namespace paddle_ernie
