// A float32 as two numbers of tf32, which has 11 bits: the tensor cores multiply these.
#pragma once

namespace jf::grouped {

struct Tf32Parts {
  unsigned big, small;
};

// word = big + small, up to 2^-23 of it: big is the nearest, of the rest nothing that does not fit. NaN stays NaN; the
// small part of an infinity, and of what rounds to one, is not finite either.
// NOTE: cvt.rna.tf32.f32 is six instructions, since it asks for NaN first; with two of these for each operand a kernel
// is bound by them, not by its products.
__device__ __forceinline__ Tf32Parts tf32_parts(unsigned word) {
  constexpr unsigned kKept = 0xffffe000, kHalf = 0x1000;
  const unsigned big = (word + kHalf) & kKept;
  return {big, __float_as_uint(__uint_as_float(word) - __uint_as_float(big)) & kKept};
}

}  // namespace jf::grouped
