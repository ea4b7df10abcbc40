// Template arguments of the preludes' functions.
#pragma once

#include <string>

#include "loops/kernel.h"

namespace jf::codegen {

// The dtypes that an op's function cannot see in its operands, since 16-bit floats are f32 there.
std::string dtype_arguments(const loops::Compute& compute, DType result);

}  // namespace jf::codegen
