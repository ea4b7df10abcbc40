// Loops over the few elements that each lane has side by side in memory (the colors of a pixel) go into the vector, so
// that these are stored together.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// For kernels on the CPU. What does not differ between the elements is loaded and computed once.
void unroll_phases(loops::Kernel& kernel);

}  // namespace jf::lower
