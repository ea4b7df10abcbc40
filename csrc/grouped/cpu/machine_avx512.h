// The Machine of every AVX-512 file; see vectors.h.
#pragma once

#include <immintrin.h>

namespace jf::grouped::cpu {
namespace {

struct Machine {
  static constexpr int kVectorBytes = 64;
  static constexpr int kTileRows = 14;

  // Masked forms: GCC 12 warns about the undefined source of the plain ones.
  static __m512 load_f16(const void* from) {
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static auto convert_f16(__m512 value) {
    typedef unsigned short Bits __attribute__((vector_size(32)));
    return (Bits)_mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // 16-bit numbers as words: GCC 12 takes two halves for it.
  static auto widen(const void* from) {
    typedef unsigned Words __attribute__((vector_size(64)));
    return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  template <class V>
  static void stream(void* to, V value) {
    if constexpr (sizeof(V) == 64) {
      _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)value);
    } else {
      static_assert(sizeof(V) == 32, "tiles are stored as f32, f64 or 16-bit floats");
      _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)value);
    }
  }
  static void fence() { _mm_sfence(); }
};

}  // namespace
}  // namespace jf::grouped::cpu
