// The 16-bit floats as memory holds them, for generated and hand-written kernels alike.
#pragma once

namespace jf {

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};

}  // namespace jf
