// Largest magnitudes of floats, and the scales that `quantize` makes of them for e4m3.
#pragma once

#include "codegen/cuda_lanes.cuh"
#include "grouped/cuda/ptx_quantize.cuh"

namespace jf {

// Two 16-bit floats or one of 32 bits in a word: the larger magnitudes, NaN if there is one.
template <class T>
struct Magnitudes;
template <>
struct Magnitudes<bf16> {
  static constexpr int kValues = 2;
  static __device__ __forceinline__ u32 most(u32 a, u32 word) { return ptx::max_nan_bf16x2(a, word & 0x7fff7fff); }
};
template <>
struct Magnitudes<f16> {
  static constexpr int kValues = 2;
  static __device__ __forceinline__ u32 most(u32 a, u32 word) { return ptx::max_nan_f16x2(a, word & 0x7fff7fff); }
};
template <>
struct Magnitudes<f32> {
  static constexpr int kValues = 1;
  static __device__ __forceinline__ u32 most(u32 a, u32 word) {
    return bits_as<u32>(ptx::max_nan(bits_as<f32>(a), bits_as<f32>(word & 0x7fffffff)));
  }
};

// Of elements whose largest magnitude is `most`; `inverse` of it is what they are multiplied by.
JF_FUNCTION f32 scale_of(f32 most, f32& inverse) {
  const f32 scale = most == 0 ? 1 : ptx::max_nan(most * (1.0f / 448), 0x1p-126f);
  inverse = ptx::reciprocal(scale);
  return scale;
}

}  // namespace jf
