// The type of both operands of 8-bit floats, as far as memory goes.
#pragma once

namespace jf::grouped {

// 8-bit floats have four bits of exponent and three of fraction, or (E5M2) five and two, each operand its own.
template <bool kLhsE5M2, bool kRhsE5M2>
struct Fp8 {
  unsigned char bits;
};

}  // namespace jf::grouped
