// Loads that conditions keep from being on their way together.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// An unrolled loop whose body stands under a condition waits for its own loads in every iteration: a compiler moves no
// load out of a branch. Such a loop becomes two, one that loads, whatever the condition, and one that works on what was
// loaded. For CUDA.
void loads_first(loops::Kernel& kernel);

}  // namespace jf::lower
