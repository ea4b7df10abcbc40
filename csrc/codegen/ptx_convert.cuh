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

}  // namespace jf::ptx
