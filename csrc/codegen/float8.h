// The 8-bit floats as memory holds them, and how bits of an f32 become theirs: to nearest, ties to even. For both
// languages; Bits is an unsigned 32-bit integer or a vector of them.
#pragma once

namespace jf {

struct f8e4m3fn {
  unsigned char bits;
};
struct f8e5m2 {
  unsigned char bits;
};

// What is added to a magnitude so that the units of the format's subnormal numbers are the last ones of the sum.
JF_FUNCTION constexpr float small_of(f8e4m3fn) { return 0x1p14f; }
JF_FUNCTION constexpr float small_of(f8e5m2) { return 0x1p7f; }
// `small`: bits of magnitude + small_of(..). Above 464 there is no number: NaN.
template <class Bits>
JF_FUNCTION Bits float8_bits(f8e4m3fn, const Bits& bits, const Bits& small) {
  const Bits size = bits & 0x7fffffffu;
  const Bits normal = (size - (120u << 23) + 0x7ffffu + ((size >> 20) & 1u)) >> 20;
  const Bits finite = size < (121u << 23) ? small - 0x46800000u : normal;
  const Bits result = size > 0x43e80000u ? Bits{} + 0x7fu : finite;
  return result | ((bits >> 24) & 0x80u);
}
// From 61440 on infinity.
template <class Bits>
JF_FUNCTION Bits float8_bits(f8e5m2, const Bits& bits, const Bits& small) {
  const Bits size = bits & 0x7fffffffu;
  const Bits normal = (size - (112u << 23) + 0xfffffu + ((size >> 21) & 1u)) >> 21;
  const Bits finite = size < (113u << 23) ? small - 0x43000000u : normal;
  const Bits large = size >= 0x47700000u ? Bits{} + 0x7cu : finite;
  const Bits result = size > 0x7f800000u ? Bits{} + 0x7eu : large;
  return result | ((bits >> 24) & 0x80u);
}

}  // namespace jf
