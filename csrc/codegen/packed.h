// Arrays that hold nothing but what was loaded as bf16. They need half the registers where they keep it so.
#pragma once

#include <set>

#include "loops/kernel.h"

namespace jf::codegen {

std::set<int> packed_arrays(const loops::Kernel& kernel);

}  // namespace jf::codegen
