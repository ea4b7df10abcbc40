// Rows that begin anywhere in memory, as those of an odd number of elements do: lanes are moved so that every vector of
// them is aligned, and the first and the last one of a row have fewer elements.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// For kernels on CUDA. Nothing changes where some vector of the kernel is something else than a row of such an array or
// of what all rows share, or where the loops have no vector to spare.
void align_rows(loops::Kernel& kernel);
// The index modulo a power of two, without large products; nothing where it is no sum.
loops::IndexPtr remainder(const loops::IndexPtr& index, int64_t of);
// Loads of vectors that are aligned, of which the last one of an array is a part: whole.
void load_whole(loops::Kernel& kernel);

}  // namespace jf::lower
