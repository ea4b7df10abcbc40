// Reads of single elements, such as a row's label or what stands there, that wait for no fold: they begin before the
// first one, so that a block does not end with a wait for memory.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// For kernels on CUDA, where the threads meet in folds and the compiler moves no load from behind a meeting.
void read_early(loops::Kernel& kernel);

}  // namespace jf::lower
