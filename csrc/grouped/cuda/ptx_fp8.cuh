// Products of a warpgroup with 8-bit floats, beside the 16-bit ones of ptx_hopper.cuh: 32 contraction indices, the same
// 32 bytes. Both operands are K-major: the instruction has no other form.
#pragma once

#include "grouped/cuda/ptx_hopper.cuh"

namespace jf::ptx {

// Arrives at the barrier of that number without waiting: kThreads are those that arrive or meet there.
template <int kThreads>
__device__ __forceinline__ void pass(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}
__device__ __forceinline__ float2 ld_shared2(unsigned address) {
  float2 words;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(words.x), "=f"(words.y) : "r"(address) : "memory");
  return words;
}

#define JF_SUMS_36(d) JF_SUMS_32(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define JF_SUMS_44(d) JF_SUMS_40(d), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define JF_NAMES_36 JF_NAMES_32 ", %32, %33, %34, %35"
#define JF_NAMES_44 JF_NAMES_40 ", %40, %41, %42, %43"

template <int kColumns>
struct Wgmma8;

#define JF_WGMMA8_TYPES(TYPE_A, TYPE_B, COLUMNS, SUMS, A, B, ADD)                                           \
  asm volatile("{.reg .pred add; setp.ne.b32 add, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS \
               "k32.f32." TYPE_A "." TYPE_B " {" JF_NAMES_##SUMS "}, %" #A ", %" #B ", add, 1, 1;}"         \
               : JF_SUMS_##SUMS(sums)                                                                       \
               : "l"(wgmma_description(a)), "l"(wgmma_description(b)), "r"(add)                             \
               : "memory")

#define JF_WGMMA8(COLUMNS, SUMS, A, B, ADD)                                                             \
  template <>                                                                                           \
  struct Wgmma8<COLUMNS> {                                                                              \
    template <bool kE5M2A, bool kE5M2B, int kSize>                                                      \
    static __device__ __forceinline__ void run(float (&sums)[kSize], unsigned a, unsigned b, int add) { \
      static_assert(kSize >= SUMS, "the sums of a thread are half as many as columns");                 \
      if constexpr (kE5M2A && kE5M2B) {                                                                 \
        JF_WGMMA8_TYPES("e5m2", "e5m2", COLUMNS, SUMS, A, B, ADD);                                      \
      } else if constexpr (kE5M2A) {                                                                    \
        JF_WGMMA8_TYPES("e5m2", "e4m3", COLUMNS, SUMS, A, B, ADD);                                      \
      } else if constexpr (kE5M2B) {                                                                    \
        JF_WGMMA8_TYPES("e4m3", "e5m2", COLUMNS, SUMS, A, B, ADD);                                      \
      } else {                                                                                          \
        JF_WGMMA8_TYPES("e4m3", "e4m3", COLUMNS, SUMS, A, B, ADD);                                      \
      }                                                                                                 \
    }                                                                                                   \
  };

JF_WGMMA8(16, 8, 8, 9, 10)
JF_WGMMA8(32, 16, 16, 17, 18)
JF_WGMMA8(48, 24, 24, 25, 26)
JF_WGMMA8(64, 32, 32, 33, 34)
JF_WGMMA8(72, 36, 36, 37, 38)
JF_WGMMA8(80, 40, 40, 41, 42)
JF_WGMMA8(88, 44, 44, 45, 46)
JF_WGMMA8(96, 48, 48, 49, 50)
JF_WGMMA8(128, 64, 64, 65, 66)
JF_WGMMA8(144, 72, 72, 73, 74)
JF_WGMMA8(160, 80, 80, 81, 82)
JF_WGMMA8(176, 88, 88, 89, 90)
JF_WGMMA8(192, 96, 96, 97, 98)

}  // namespace jf::ptx
