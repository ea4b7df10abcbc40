#include "grouped/cpu/kernels.h"

#include "base/error.h"

namespace jf::grouped::cpu {

const Kernel& find_kernel(Isa isa, DType in, DType out) {
  const Kernel* kernel = nullptr;
  switch (isa) {  // each falls back to those below it
    case Isa::kAmx:
      kernel = amx_kernel(in, out);
      if (kernel) break;
      [[fallthrough]];
    case Isa::kAvx512Bf16:
      // Where AMX exists, the bf16 dot product of AVX-512 runs at half the f32 rate, but all bf16 work is on the tiles.
      kernel = avx512bf16_kernel(in, out);
      if (kernel) break;
      [[fallthrough]];
    case Isa::kAvx512:
      kernel = avx512_kernel(in, out);
      if (kernel) break;
      [[fallthrough]];
    case Isa::kAvx2:
      kernel = avx2_kernel(in, out);
      if (kernel) break;
      [[fallthrough]];
    case Isa::kPortable: kernel = portable_kernel(in, out);
  }
  JF_REQUIRE(
      kernel != nullptr, "[grouped_matmul] cannot multiply ", name(in), " into ", name(out),
      " on the CPU; expected float inputs with a float result of at most f32, f64 with f64, or integers with integers");
  return *kernel;
}

}  // namespace jf::grouped::cpu
