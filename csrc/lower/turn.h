// Where lanes gather along one axis and the loop around them goes along neighbours in memory, whole vectors are loaded
// and turned in registers before the loop.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// For kernels on the CPU.
void turn_gathers(loops::Kernel& kernel);

}  // namespace jf::lower
