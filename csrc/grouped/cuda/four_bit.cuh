// Weights of four bits as the kernel finds them, and how they become bf16 in registers.
//
// A piece is 128 columns of rhs by 64 contraction indices: for each slice of 64 columns 16 bytes of every thread of a
// warpgroup, then for each slice the scales, then 16 bytes that begin with a factor of all weights of the group. A word
// of a thread has the eight codes of its four words of a product of depth 16 (ptx_four_bit.cuh). Rows of a product
// are columns of rhs, and scales belong to a row: the four lanes that share one read the same, a word or two for the
// rows lane / 4 and 8 further.
//
// Every weight is exact but those of int4, where a code times its scale is rounded to bf16.
#pragma once

#include "grouped/cuda/ptx_four_bit.cuh"

namespace jf::grouped {

namespace four_bit {

__device__ __forceinline__ unsigned rotate_right(unsigned word, int bits) { return __funnelshift_r(word, word, bits); }

// e2m1: sign, two bits of exponent and one of mantissa, at the places of the low ones of bf16, give the value times
// 2^-126. The first pair of codes is there, the next two are rotated by 3 and 6 bits; the last has bits 0, 1, 3 and 4
// of both halves, which one product brings to their places: 2^7 the exponent, 2^2 the mantissa, 2^12 the sign.
struct E2m1 {
  static __device__ __forceinline__ void pairs(unsigned word, unsigned (&pair)[4]) {
    constexpr unsigned kPair = 0x81c081c0, kRest = 0x001b001b;
    pair[0] = word & kPair;
    pair[1] = rotate_right(word, 3) & kPair;
    pair[2] = rotate_right(word, 6) & kPair;
    pair[3] = (word & kRest) * (1 << 7 | 1 << 2 | 1 << 12) & kPair;
  }
};

}  // namespace four_bit

// Scales are powers of two, bytes of exponents: 2^126 times the largest of a group is 1.
struct Mxfp4 : four_bit::E2m1 {
  static constexpr int kScaleWords = 1, kSteps = 2;  // words of a thread in a piece; products of one scale
  static __device__ __forceinline__ unsigned scales(const unsigned (&words)[1], int block) {
    return four_bit::rotate_right(words[0], 8 * block) & 0x7f807f80;
  }
};

// Scales are five bits of exponent and three of mantissa, those of bf16 from 2^97 on.
struct Nvfp4 : four_bit::E2m1 {
  static constexpr int kScaleWords = 2, kSteps = 1;
  static __device__ __forceinline__ unsigned scales(const unsigned (&words)[2], int block) {
    return (four_bit::rotate_right(words[block / 2], 8 * (block % 2)) & 0x0ff00ff0) | 0x70007000;
  }
};

// Codes are values plus 8, scales bf16, one for each kIndices contraction indices.
template <int kIndices>
struct Int4 {
  static_assert(kIndices == 32 || kIndices == 64, "a piece has one scale or two");
  static constexpr int kScaleWords = 64 / kIndices, kSteps = kIndices / 16;
  static __device__ __forceinline__ void pairs(unsigned word, unsigned (&pair)[4]) {
    constexpr unsigned k128 = 0x43004300, k136 = 0x43084308;  // below 256 the last bit of bf16 is 1
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = ptx::sub_bf16x2((word >> 4 * i & 0x000f000f) | k128, k136);
  }
  static __device__ __forceinline__ unsigned scales(const unsigned (&words)[kScaleWords], int block) {
    return words[block];
  }
};

// What a thread reads of a piece.
template <class Format>
struct Codes {
  unsigned words[4], scales[Format::kScaleWords];
};

// The words `a` of kSteps products from the `first` on, four of each.
template <class Format, int kSteps>
__device__ __forceinline__ void decode(const Codes<Format>& codes, int first, unsigned (&a)[kSteps * 4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const unsigned both = Format::scales(codes.scales, (first + step) / Format::kSteps);
    unsigned pair[4];
    Format::pairs(codes.words[first + step], pair);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      a[step * 4 + i] = ptx::mul_bf16x2_low(pair[i], both);
      a[step * 4 + i + 1] = ptx::mul_bf16x2_high(pair[i + 1], both);
    }
  }
}

}  // namespace jf::grouped
