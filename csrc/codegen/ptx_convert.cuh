// PTX on one thread's values that C++ cannot spell without a header. Needs sm_80 or later.
#pragma once

namespace jf::ptx {

// To nearest, ties to even; NaN stays NaN.
static __device__ __forceinline__ unsigned short f16_from_f32(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
static __device__ __forceinline__ unsigned short bf16_from_f32(float x) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
// Two at once; `low` goes to the low half, which lies first in memory.
static __device__ __forceinline__ unsigned f16x2_from_f32(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
static __device__ __forceinline__ unsigned bf16x2_from_f32(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
static __device__ __forceinline__ float f32_from_f16(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
#if __CUDA_ARCH__ >= 890
// Two numbers as 8-bit floats, `low` first in memory. The instruction takes numbers that the format does not hold for
// its largest one; they are NaN or infinite.
static __device__ __forceinline__ float within_e4m3(float x) {
  return fabsf(x) > 464.0f ? __int_as_float(0x7fc00000) : x;
}
static __device__ __forceinline__ unsigned short e4m3x2_from_f32(float low, float high) {
  unsigned short bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(within_e4m3(high)), "f"(within_e4m3(low)));
  return bits;
}
static __device__ __forceinline__ unsigned short e5m2x2_from_f32(float low, float high) {
  unsigned short bits;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  // The largest number is 0x7b, infinity the next one.
  return bits + (fabsf(low) >= 61440.0f) + (fabsf(high) >= 61440.0f ? 256 : 0);
}
#endif

// 16 bytes at an address of global memory that is a multiple of 16.
static __device__ __forceinline__ void store_global(void* p, unsigned long low, unsigned long high) {
  asm volatile("st.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "l"(low), "l"(high));
}

// 16 bytes at such an address, which nobody writes, that leave the second-level cache after others.
static __device__ __forceinline__ void load_lasting(const void* p, unsigned long& low, unsigned long& high) {
  unsigned long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm("ld.global.nc.L1::evict_last.L2::cache_hint.v2.b64 {%0, %1}, [%2], %3;"
      : "=l"(low), "=l"(high)
      : "l"(__cvta_generic_to_global(p)), "l"(policy));
}
// Reads in the order of the program: a strong read does not cross the warp's barrier, which is no instruction.
template <class T>
static __device__ __forceinline__ T load_now(const T* p) {
  T x = {};
  const auto from = __cvta_generic_to_global(p);
  if constexpr (sizeof(T) == 8) {
    asm volatile("ld.relaxed.cta.global.b64 %0, [%1];" : "=l"(reinterpret_cast<unsigned long&>(x)) : "l"(from));
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.relaxed.cta.global.b32 %0, [%1];" : "=r"(reinterpret_cast<unsigned&>(x)) : "l"(from));
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("ld.relaxed.cta.global.b16 %0, [%1];" : "=h"(reinterpret_cast<unsigned short&>(x)) : "l"(from));
  } else {
    x = *p;
  }
  asm volatile("bar.warp.sync 0xffffffff;");
  return x;
}

// NaN when either is; +0 is larger than -0.
static __device__ __forceinline__ float max_nan(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
static __device__ __forceinline__ float min_nan(float x, float y) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
// The same of two bf16 each.
static __device__ __forceinline__ unsigned max_nan_bf16x2(unsigned x, unsigned y) {
  unsigned result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
  return result;
}
static __device__ __forceinline__ unsigned min_nan_bf16x2(unsigned x, unsigned y) {
  unsigned result;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
  return result;
}

// 1 / x rounded to nearest.
static __device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.rn.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// 1 / x to a unit in the last place; of a subnormal number infinity.
static __device__ __forceinline__ float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// x / y to 2 units in the last place. What depends on y alone is computed once for a y that stays: its scale, which
// keeps the reciprocal normal, and the reciprocal.
static __device__ __forceinline__ float quotient(float x, float y) {
  const float size = fabsf(y), scale = size > 0x1p62f ? 0x1p-64f : size < 0x1p-62f ? 0x1p64f : 1.0f;
  return x * reciprocal_approx(y * scale) * scale;
}

// 2^x to 2 units in the last place, and tanh to 2^-11 of its value.
static __device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
static __device__ __forceinline__ float tanh_approx(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// To 2^-22 from 1/2 to 2, elsewhere of its value.
static __device__ __forceinline__ float log2_approx(float x) {
  float result;
  asm("lg2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The low half of a word as the high half of another, and the high half alone; each kForm in instructions of its own,
// which compilers do not take for each other's.
template <int kForm>
static __device__ __forceinline__ void take_halves(unsigned word, unsigned& low, unsigned& high) {
  if constexpr (kForm == 0) {
    asm volatile("shl.b32 %0, %1, 16;" : "=r"(low) : "r"(word));
    asm volatile("and.b32 %0, %1, 0xffff0000;" : "=r"(high) : "r"(word));
  } else if constexpr (kForm == 1) {
    asm volatile("prmt.b32 %0, %1, 0, 0x1044;" : "=r"(low) : "r"(word));
    asm volatile("prmt.b32 %0, %1, 0, 0x3244;" : "=r"(high) : "r"(word));
  } else {
    asm volatile("prmt.b32 %0, 0, %1, 0x5400;" : "=r"(low) : "r"(word));
    asm volatile("prmt.b32 %0, 0, %1, 0x7600;" : "=r"(high) : "r"(word));
  }
}

// Of the threads of a warp that are here together.
static __device__ __forceinline__ bool all_of_warp(bool where) { return __all_sync(__activemask(), where); }

// All ones or 0, in a way that no compiler turns into a choice.
static __device__ __forceinline__ int mask(bool where) {
  int result;
  asm("neg.s32 %0, %1;" : "=r"(result) : "r"(static_cast<int>(where)));
  return result;
}

}  // namespace jf::ptx
