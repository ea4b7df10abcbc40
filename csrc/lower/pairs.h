// Where codes of four bits are stored: two to a byte, so that one thread must have both.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// Whether all stores of u4 are whole vectors of them, from an even one on.
bool stores_pairs(const loops::Kernel& kernel);

}  // namespace jf::lower
