// AVX2 with FMA and F16C: tiles of 6 x 16 f32 or 6 x 8 f64; bf16 and f16 become f32 while they are packed.
#include <immintrin.h>

namespace jf::grouped::cpu {
namespace {

struct Machine {
  static constexpr int kVectorBytes = 32;
  static constexpr int kTileRows = 6;

  static __m256 load_f16(const void* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  static auto convert_f16(__m256 value) {
    typedef unsigned short Bits __attribute__((vector_size(16)));
    return (Bits)_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  template <class V>
  static void stream(void* to, V value) {
    if constexpr (sizeof(V) == 32) {
      _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)value);
    } else {
      static_assert(sizeof(V) == 16, "tiles are stored as f32, f64 or 16-bit floats");
      _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)value);
    }
  }
  static void fence() { _mm_sfence(); }
};

}  // namespace
}  // namespace jf::grouped::cpu

// After Machine:
#include "grouped/cpu/kernel_of.h"

namespace jf::grouped::cpu {

const Kernel* avx2_kernel(DType in, DType out) { return fma_kernel(in, out); }

}  // namespace jf::grouped::cpu
