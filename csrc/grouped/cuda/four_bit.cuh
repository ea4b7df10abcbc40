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
};

}  // namespace four_bit

// Scales are powers of two, bytes of exponents: 2^126 times the largest of a group is 1.
struct Mxfp4 : four_bit::E2m1 {
  // Words of a thread in a piece, blocks of each; products of one block.
  static constexpr int kScaleWords = 1, kBlocks = 2, kSteps = 2;
  static __device__ __forceinline__ unsigned scales(unsigned word, int block) {
    return four_bit::rotate_right(word, 8 * block) & 0x7f807f80;
  }
};

// Scales are five bits of exponent and three of mantissa, those of bf16 from 2^97 on.
struct Nvfp4 : four_bit::E2m1 {
  static constexpr int kScaleWords = 2, kBlocks = 2, kSteps = 1;
  static __device__ __forceinline__ unsigned scales(unsigned word, int block) {
    return (four_bit::rotate_right(word, 8 * block) & 0x0ff00ff0) | 0x70007000;
  }
};

// Codes are values plus 8, scales bf16, one for each kIndices contraction indices.
template <int kIndices>
struct Int4 {
  static_assert(kIndices == 32 || kIndices == 64, "a piece has one scale or two");
  static constexpr int kScaleWords = 64 / kIndices, kBlocks = 1, kSteps = kIndices / 16;
  static __device__ __forceinline__ void pairs(unsigned word, unsigned (&pair)[4]) {
    constexpr unsigned k128 = 0x43004300, k136 = 0x43084308;  // below 256 the last bit of bf16 is 1
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = ptx::sub_bf16x2((word >> 4 * i & 0x000f000f) | k128, k136);
  }
  static __device__ __forceinline__ unsigned scales(unsigned word, int) { return word; }
};

// What a thread reads of a piece: kBack, to sum over its columns.
template <class Format, bool kBack>
struct Codes {
  unsigned words[4], scales[kBack ? 4 : Format::kScaleWords];
};

// The four words of a product, rows of the weights by contraction indices.
template <class Format>
__device__ __forceinline__ void decode(unsigned word, unsigned scales, unsigned* a) {
  unsigned pair[4];
  Format::pairs(word, pair);
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    a[i] = ptx::mul_bf16x2_low(pair[i], scales);
    a[i + 1] = ptx::mul_bf16x2_high(pair[i + 1], scales);
  }
}

// The words `a` of kProducts products from the `first` on, four of each.
template <class Format, int kProducts>
__device__ __forceinline__ void decode(const Codes<Format, false>& codes, int first, unsigned (&a)[kProducts * 4]) {
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    const int block = (first + i) / Format::kSteps;
    const unsigned scales = Format::scales(codes.scales[block / Format::kBlocks], block % Format::kBlocks);
    decode<Format>(codes.words[first + i], scales, a + i * 4);
  }
}

// Of weights turned: a product sums over 16 columns of the piece, and its rows are contraction indices 16 * warp on.
template <class Format, int kProducts>
__device__ __forceinline__ void decode(const Codes<Format, true>& codes, int first, unsigned (&a)[kProducts * 4]) {
  const int block = static_cast<int>(threadIdx.x / 32 % 4) / Format::kSteps % Format::kBlocks;
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    unsigned straight[4];
    decode<Format>(codes.words[first + i], Format::scales(codes.scales[first + i], block), straight);
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i * 4 + j] = ptx::turn_8x8(straight[j % 2 * 2 + j / 2]);
  }
}

}  // namespace jf::grouped
