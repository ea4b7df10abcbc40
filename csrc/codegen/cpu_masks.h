// Vectors in memory of which only the first lanes exist, for machines that have instructions for it.
#pragma once

#include "codegen/cpu_lanes.h"

namespace jf {

// Compilers differ in what the pointers of these instructions point to.
struct AnyPointer {
  const void* p;
  template <class T>
  __attribute__((always_inline)) operator T*() const {
    return (T*)p;
  }
};

// load and store touch the first `count` elements alone; a load gives zeros for the others. kExists tells whether the
// machine has them for this size of an element and of a vector.
template <int kElementBytes, int kVectorBytes>
struct Masked {
  static constexpr bool kExists = false;
};

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

JF_FUNCTION u64 first_bits(int count) { return count < 64 ? (1ul << count) - 1 : ~0ul; }
#define JF_MASKED(Element, bytes, name)                                                       \
  template <>                                                                                 \
  struct Masked<sizeof(Element), bytes> {                                                     \
    typedef Element Vector __attribute__((vector_size(bytes)));                               \
    static constexpr bool kExists = true;                                                     \
    JF_FUNCTION Vector load(const void* p, int count) {                                       \
      return __builtin_ia32_loaddqu##name##_mask(AnyPointer{p}, Vector{}, first_bits(count)); \
    }                                                                                         \
    JF_FUNCTION void store(void* p, Vector x, int count) {                                    \
      __builtin_ia32_storedqu##name##_mask(AnyPointer{p}, x, first_bits(count));              \
    }                                                                                         \
  };
JF_MASKED(char, 16, qi128)
JF_MASKED(char, 32, qi256)
JF_MASKED(char, 64, qi512)
JF_MASKED(short, 16, hi128)
JF_MASKED(short, 32, hi256)
JF_MASKED(short, 64, hi512)
JF_MASKED(int, 16, si128)
JF_MASKED(int, 32, si256)
JF_MASKED(int, 64, si512)
JF_MASKED(long long, 16, di128)
JF_MASKED(long long, 32, di256)
JF_MASKED(long long, 64, di512)
#undef JF_MASKED

#elif defined(__AVX2__)

#define JF_MASKED(Element, bytes, name)                                        \
  template <>                                                                  \
  struct Masked<sizeof(Element), bytes> {                                      \
    typedef Element Vector __attribute__((vector_size(bytes)));                \
    static constexpr bool kExists = true;                                      \
    JF_FUNCTION Vector first_lanes(int count) {                                \
      Vector lane{};                                                           \
      for (int i = 0; i < int(bytes / sizeof(Element)); ++i) lane[i] = i;      \
      return (Vector)(lane < count);                                           \
    }                                                                          \
    JF_FUNCTION Vector load(const void* p, int count) {                        \
      return __builtin_ia32_maskload##name(AnyPointer{p}, first_lanes(count)); \
    }                                                                          \
    JF_FUNCTION void store(void* p, Vector x, int count) {                     \
      __builtin_ia32_maskstore##name(AnyPointer{p}, first_lanes(count), x);    \
    }                                                                          \
  };
JF_MASKED(int, 16, d)
JF_MASKED(int, 32, d256)
JF_MASKED(long long, 16, q)
JF_MASKED(long long, 32, q256)
#undef JF_MASKED

#endif

// The same for any vector, those below 16 bytes too.
template <class V, int kElementBytes>
using MaskedFor = Masked<kElementBytes, sizeof(V) < 16 ? 16 : int(sizeof(V))>;
template <class V, int kElementBytes>
JF_FUNCTION V read_first(const void* p, int count) {
  const auto x = MaskedFor<V, kElementBytes>::load(p, count);
  if constexpr (sizeof(V) < 16) {
    return (V)Unsigned<V>(((Words)x)[0]);
  } else {
    return (V)x;
  }
}
template <int kElementBytes, class V>
JF_FUNCTION void write_first(void* p, V x, int count) {
  using M = MaskedFor<V, kElementBytes>;
  if constexpr (sizeof(V) < 16) {
    M::store(p, (typename M::Vector)Words{(Unsigned<V>)x, 0}, count);
  } else {
    M::store(p, (typename M::Vector)x, count);
  }
}

}  // namespace jf
