// Rows gathered by number: the machine cannot guess where the next one is, but its number can be read ahead.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// For kernels on the CPU: where a loop goes over rows that numbers in memory name, a pass over one fetches the next.
void prefetch_gathered_rows(loops::Kernel& kernel);

}  // namespace jf::lower
