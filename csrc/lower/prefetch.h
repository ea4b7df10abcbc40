// Where a loop goes along each row more than once, memory has nothing to do while the later passes run in the cache:
// they fetch the next row.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// For kernels on the CPU.
void prefetch_rows(loops::Kernel& kernel);

}  // namespace jf::lower
