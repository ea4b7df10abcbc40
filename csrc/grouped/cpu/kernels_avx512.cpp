// AVX-512: tiles of 14 x 32 f32 or 14 x 16 f64; bf16 and f16 become f32 while they are packed.
#include "grouped/cpu/machine_avx512.h"

// After Machine:
#include "grouped/cpu/kernel_of.h"

namespace jf::grouped::cpu {

const Kernel* avx512_kernel(DType in, DType out) { return fma_kernel(in, out); }

}  // namespace jf::grouped::cpu
