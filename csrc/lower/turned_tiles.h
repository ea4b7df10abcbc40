// Transposes of arrays whose rows begin anywhere in memory, as those of an odd number of elements do: tiles go to
// shared memory by aligned vectors of their rows and come from there in aligned vectors of their columns, which begin
// as far before the tile as the result's columns begin into a vector.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// For kernels on CUDA that take transposes one element at a time, as the transpose strategy schedules them: square
// tiles to shared memory, then what is computed of them. Nothing changes where some of it is neither in the order of
// the result nor the same along its rows, or where the tiles end too early to have the last rows.
void turn_tiles(loops::Kernel& kernel);

}  // namespace jf::lower
