// PTX that kernels that quantize add to ptx_hopper.cuh: magnitudes in pairs, 8-bit floats, the largest in a cluster.
#pragma once

#include "grouped/cuda/ptx_hopper.cuh"

namespace jf::ptx {

// Of two f16 each; NaN where either is.
__device__ __forceinline__ unsigned max_nan_f16x2(unsigned a, unsigned b) {
  unsigned result;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
// Of numbers of which the format holds the nearest one, or NaN; `low` first in memory.
__device__ __forceinline__ unsigned e4m3x2_of_scaled(float low, float high) {
  unsigned bits;
  asm("{.reg .b16 x; cvt.rn.satfinite.e4m3x2.f32 x, %1, %2; cvt.u32.u16 %0, x;}" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
// Makes the word at a cluster address the larger of itself and `value`.
__device__ __forceinline__ void raise_in_cluster(unsigned there, unsigned value) {
  asm volatile("red.shared::cluster.max.u32 [%0], %1;" ::"r"(there), "r"(value) : "memory");
}
// Into shared memory of any block of the cluster.
__device__ __forceinline__ void st_cluster(unsigned address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
// As cluster_arrive; what the threads wrote before is seen by those that wait.
__device__ __forceinline__ void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

}  // namespace jf::ptx
