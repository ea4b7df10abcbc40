// Weights of four bits as the kernel finds them, and how they become bf16 in registers.
//
// A piece is 64 columns (rows of the weights [n, k]) by 64 contraction indices: 16 bytes of every thread of a
// warpgroup, then the scales; a multiple of 128 bytes. A word of a thread has the eight codes of its four words of a
// product of depth 16 (ptx_four_bit.cuh). Rows of a product are columns, and scales belong to a row: the four lanes
// that share one read the same, a word or two for the rows lane / 4 and 8 further. What all weights of a group are
// multiplied by is a number beside the pieces.
//
// Products that sum over the columns instead read the same pieces: matrices of 8 by 8 are turned in registers.
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
  static __device__ __forceinline__ void decode(unsigned word, unsigned scales, unsigned* a) {
    unsigned pair[4];
    pairs(word, pair);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      a[i] = ptx::mul_bf16x2_low(pair[i], scales);
      a[i + 1] = ptx::mul_bf16x2_high(pair[i + 1], scales);
    }
  }
};

}  // namespace four_bit

// Scales are powers of two, bytes of exponents: 2^126 times the largest of a group is 1.
struct Mxfp4 : four_bit::E2m1 {
  // Words of a thread in a piece, blocks of each; products of one block.
  static constexpr int kScaleWords = 1, kBlocks = 2, kSteps = 2;
  __device__ __forceinline__ unsigned scales(unsigned word, int block) const {
    return four_bit::rotate_right(word, 8 * block) & 0x7f807f80;
  }
};

// Scales are five bits of exponent and three of mantissa, those of bf16 from 2^97 on.
struct Nvfp4 : four_bit::E2m1 {
  static constexpr int kScaleWords = 2, kBlocks = 2, kSteps = 1;
  // From a lane: a compiler that knew the number would move it into a register for every scale.
  unsigned mask = __shfl_sync(~0u, 0x0ff00ff0, 0);
  __device__ __forceinline__ unsigned scales(unsigned word, int block) const {
    return (four_bit::rotate_right(word, 8 * block) & mask) | 0x70007000;
  }
};

// Codes are values plus 8, scales bf16, one for each kIndices contraction indices. A code in the low bits of bf16 is so
// many times 2^-133, one above it 2^-129: one fma multiplies it and takes away 8 times the scale.
template <int kIndices>
struct Int4 {
  static_assert(kIndices == 32 || kIndices == 64, "a piece has one scale or two");
  static constexpr int kScaleWords = 64 / kIndices, kBlocks = 1, kSteps = kIndices / 16;
  struct Scales {
    unsigned low, high, eight;  // for codes in the low bits, above them; to add
  };
  __device__ __forceinline__ Scales scales(unsigned word, int) const {
    constexpr unsigned k2ToMinus4 = 0x3d803d80, kMinus2ToMinus130 = 0x80088008;
    return {word, ptx::mul_bf16x2(word, k2ToMinus4), ptx::mul_bf16x2(word, kMinus2ToMinus130)};
  }
  static __device__ __forceinline__ void decode(unsigned word, const Scales& scales, unsigned* a) {
    constexpr unsigned kLow = 0x000f000f, kHigh = 0x00f000f0;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      a[i] = ptx::fma_bf16x2_low(word >> 4 * i & kLow, scales.low, scales.eight);
      a[i + 1] = ptx::fma_bf16x2_high(word >> 4 * i & kHigh, scales.high, scales.eight);
    }
  }
};

// What a thread reads of a piece: kBack, to sum over its columns.
template <class Format, bool kBack>
struct Codes {
  unsigned words[4], scales[kBack ? 4 : Format::kScaleWords];
};

// The words `a` of kProducts products from the `first` on, four of each.
template <class Format, int kProducts>
__device__ __forceinline__ void decode(const Format& format, const Codes<Format, false>& codes, int first,
                                       unsigned (&a)[kProducts * 4]) {
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    const int block = (first + i) / Format::kSteps;
    const unsigned scales = codes.scales[block / Format::kBlocks];
    Format::decode(codes.words[first + i], format.scales(scales, block % Format::kBlocks), a + i * 4);
  }
}

// Of weights turned: a product sums over 16 columns of the piece, and its rows are contraction indices 16 * warp on.
template <class Format, int kProducts>
__device__ __forceinline__ void decode(const Format& format, const Codes<Format, true>& codes, int first,
                                       unsigned (&a)[kProducts * 4]) {
  const int block = static_cast<int>(threadIdx.x / 32 % 4) / Format::kSteps % Format::kBlocks;
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    unsigned straight[4];
    Format::decode(codes.words[first + i], format.scales(codes.scales[first + i], block), straight);
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i * 4 + j] = ptx::turn_8x8(straight[j % 2 * 2 + j / 2]);
  }
}

}  // namespace jf::grouped
