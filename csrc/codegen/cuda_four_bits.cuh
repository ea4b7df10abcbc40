// Codes of four bits, which only stores write: two to a byte, the first in the low half.
#pragma once

#include "codegen/cuda_memory.cuh"

namespace jf {

// The last four bits of each code, one instruction for each.
template <int N, class Code>
JF_FUNCTION u32 nibbles(Code code) {
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) word = __funnelshift_r(word, code(i), 4);
  return word >> (32 - 4 * N);
}
// The first four bits of each.
template <int N, class Code>
JF_FUNCTION u32 first_nibbles(Code code) {
  u32 word = 0;
#pragma unroll
  for (int i = N; i-- > 0;) word = __funnelshift_l(code(i), word, 4);
  return word;
}

// What the codes of a thread are stored as, N of them at once.
template <int N>
struct PackedCodes {
  using Type = u32;
};
template <>
struct PackedCodes<2> {
  using Type = u8;
};
template <>
struct PackedCodes<4> {
  using Type = u16;
};

// `word(first)` has the codes from `first` on.
template <int W, class Word>
JF_FUNCTION void store_words(u4* p, long offset, Word word) {
  constexpr int kCodes = smaller_of(W, 8);
  using Words = Chunk<typename PackedCodes<kCodes>::Type, W / kCodes>;
  Words words;
#pragma unroll
  for (int i = 0; i < W / kCodes; ++i) words.v[i] = typename PackedCodes<kCodes>::Type(word(i * kCodes));
  *reinterpret_cast<Words*>(reinterpret_cast<u8*>(p) + (offset >> 1)) = words;
}
// `offset` counts codes.
template <int kMultiple, int W, class On = All>
JF_FUNCTION void store(u4* p, long offset, const Lanes<u32, W>& x, On on = {}) {
  static_assert(kMultiple % 2 == 0, "a thread has both of a byte");
  if constexpr (is_same<On, All> && kMultiple % W == 0 && W <= 32) {
    store_words<W>(p, offset,
                   [&](int first) { return nibbles<smaller_of(W, 8)>([&](int i) { return x.v[first + i]; }); });
  } else {
    u8* const to = reinterpret_cast<u8*>(p) + (offset >> 1);
#pragma unroll
    for (int i = 0; i < W; i += 2) {
      if (is_active(on, i)) to[i / 2] = u8((x.v[i] & 15) | x.v[i + 1] << 4);
    }
  }
}

// Codes of the nearest e2m1 values as `to_e2m1` of _fp4.py has them, which says why: magnitudes are rounded by what is
// added to them, and come out so much above the code.
constexpr u32 kE2m1Zero = 0x4afffffc, kMostE2m1 = 7;
JF_FUNCTION u32 above_e2m1(f32 x) {
  const f32 size = bits_as<f32>(bits_as<u32>(x) & 0x7fffffff);
  const u32 below = bits_as<u32>(size + bits_as<f32>(kE2m1Zero)), above = bits_as<u32>(size * 0.5f + 8388608.0f);
  const u32 least = below < above ? below : above;
  return least < kE2m1Zero + kMostE2m1 ? least : kE2m1Zero + kMostE2m1;
}
template <int W>
JF_FUNCTION Lanes<u32, W> e2m1(const Lanes<f32, W>& a) {
  return map<u32>([](f32 x) { return (above_e2m1(x) - kE2m1Zero) | (bits_as<u32>(x) >> 28 & 8); }, a);
}
// What has codes that are stored: signs and the rest are put side by side apart, in fewer instructions than code by
// code.
template <int W>
struct NearestE2m1 {
  Lanes<f32, W> x;
};
template <int kMultiple, int W, class On = All>
JF_FUNCTION void store(u4* p, long offset, const NearestE2m1<W>& codes, On on = {}) {
  if constexpr (is_same<On, All> && kMultiple % W == 0 && W <= 32) {
    static_assert(kE2m1Zero % 16 == 12, "its last bits turn the third one of a code over");
    store_words<W>(p, offset, [&](int first) {
      constexpr int kCodes = smaller_of(W, 8);
      const auto x = [&](int i) { return codes.x.v[first + i]; };
      const u32 sizes = nibbles<kCodes>([&](int i) { return above_e2m1(x(i)); });
      const u32 signs = first_nibbles<kCodes>([&](int i) { return bits_as<u32>(x(i)); });
      return ((sizes & 0x77777777) ^ 0x44444444) | (signs & 0x88888888);
    });
  } else {
    store<kMultiple>(p, offset, e2m1(codes.x), on);
  }
}

}  // namespace jf
