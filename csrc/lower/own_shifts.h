// Sums of exp(x - largest x) over rows that threads share: each thread's own largest x goes with its own sum, and both
// are joined once, rather than all of them waiting for the largest x of all before they begin their sums.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// After loads_first, so that the loops read rows from registers.
void own_shifts(loops::Kernel& kernel);

}  // namespace jf::lower
