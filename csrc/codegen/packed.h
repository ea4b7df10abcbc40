// Arrays that hold nothing but what was loaded as bf16. Kept in pairs as they were read, two need one register.
#pragma once

#include <set>

#include "loops/kernel.h"

namespace jf::codegen {

std::set<int> packed_arrays(const loops::Kernel& kernel);
// Those that find the largest or smallest of it, until threads join what they have: exact in pairs, and few
// instructions.
std::set<int> paired_folds(const loops::Kernel& kernel);

}  // namespace jf::codegen
