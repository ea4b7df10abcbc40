// What 16-bit results become in the kernel that computes them: the formats of `quantize`, bit for bit.
//
//   struct Format {
//     static constexpr int kColumns = 32;    // of a row that share a scale, a multiple of 8
//     static constexpr int kBits = 8;        // of an element
//     using Scale = u8;                      // as memory holds it
//     static constexpr Scale kOfZeros = 0;   // the scale of zeros
//     using Eight = uint2;                   // eight elements, the first in the lowest bits
//     // Of numbers whose largest magnitude is `most`, NaN if there is one; they are multiplied by `inverse`.
//     static Scale scale_of(f32 most, f32& inverse);
//     static Eight eight(const f32 (&scaled)[8]);
//   };
#pragma once

#include "grouped/cuda/magnitudes.cuh"

namespace jf {

struct E4m3 {
  static constexpr int kBits = 8;
  using Eight = uint2;
  static __device__ __forceinline__ uint2 eight(const f32 (&x)[8]) {
    return {ptx::e4m3x2_of_scaled(x[0], x[1]) | ptx::e4m3x2_of_scaled(x[2], x[3]) << 16,
            ptx::e4m3x2_of_scaled(x[4], x[5]) | ptx::e4m3x2_of_scaled(x[6], x[7]) << 16};
  }
};

// As `to_e2m1` of _fp4.py, which says why: magnitudes are rounded by what is added to them.
struct E2m1 {
  static constexpr int kBits = 4;
  using Eight = u32;
  static __device__ __forceinline__ u32 eight(const f32 (&x)[8]) {
    constexpr u32 kFirst = 0x4afffffc, kMost = 7;  // bits of 2^23 - 2, the largest code
    u32 codes = 0, signs = 0;
#pragma unroll
    for (int i = 7; i >= 0; --i) {
      const u32 below = bits_as<u32>(fabsf(x[i]) + 0x1.fffff8p22f);
      const u32 above = bits_as<u32>(fabsf(x[i]) * 0.5f + 0x1p23f);
      codes = codes * 16 + min(min(below, above), kFirst + kMost);
      signs = signs << 4 | bits_as<u32>(x[i]) >> 28;
    }
    return codes - kFirst * 0x11111111u | signs & 0x88888888u;
  }
};

// 0 of finite numbers.
JF_FUNCTION f32 nan_unless_finite(f32 most) { return most * 0; }

// The smallest e8m0 scale, an exponent biased by 127, that is not below x >= 0; 255, which is NaN, of what is not
// finite. Its inverse is a normal number, since x is FLT_MAX / 6 at most; that of NaN is -infinity, as in _fp4.py.
JF_FUNCTION u8 exponent_above(f32 x, f32& inverse) {
  const u32 bits = bits_as<u32>(x);
  const u32 exponent = bits <= 1u << 22 ? 0 : min((bits + 0x7fffff) >> 23, 255u);
  inverse = bits_as<f32>((254 - exponent) << 23);
  return u8(exponent);
}

struct Fp8Block : E4m3 {
  static constexpr int kColumns = 128;
  using Scale = f32;
  static constexpr Scale kOfZeros = 1;
  static __device__ __forceinline__ f32 scale_of(f32 most, f32& inverse) { return jf::scale_of(most, inverse); }
};

struct Mxfp8 : E4m3 {
  static constexpr int kColumns = 32;
  using Scale = u8;
  static constexpr Scale kOfZeros = 0;
  static __device__ __forceinline__ u8 scale_of(f32 most, f32& inverse) {
    const u8 scale = exponent_above(most * (1.0f / 448), inverse);
    inverse += nan_unless_finite(most);  // elements are: infinity would become a number
    return scale;
  }
};

struct Mxfp4 : E2m1 {
  static constexpr int kColumns = 32;
  using Scale = u8;
  static constexpr Scale kOfZeros = 0;
  static __device__ __forceinline__ u8 scale_of(f32 most, f32& inverse) {
    return exponent_above(most * (1.0f / 6), inverse);
  }
};

struct Nvfp4 : E2m1 {
  static constexpr int kColumns = 16;
  using Scale = u8;
  static constexpr Scale kOfZeros = 0;
  static __device__ __forceinline__ u8 scale_of(f32 most, f32& inverse) {
    const f32 wanted = fminf(most * (1.0f / 6), 448) + nan_unless_finite(most);
    const u8 scale = u8(ptx::e4m3x2_of_scaled(wanted, 0));
    const f32 rounded = decode(f8e4m3fn{}, scale);
    inverse = rounded == 0 ? 0x1.fffffep127f : ptx::reciprocal(rounded);
    return scale;
  }
};

}  // namespace jf
