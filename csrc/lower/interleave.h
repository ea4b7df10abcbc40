// Where lanes are a few elements apart, and loads or stores beside each other take all of those between them, whole
// vectors are loaded and stored.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// Whether so many elements side by side are worth it: to sort more takes longer than to move each by itself.
bool can_interleave(int64_t phases);
// For kernels on the CPU.
void interleave(loops::Kernel& kernel);

}  // namespace jf::lower
