// Columns that a block reads again for each of its rows, though its threads have the same ones: once, before the rows.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// After loads_first, which makes loops of their own of such loads.
void columns_once(loops::Kernel& kernel);

}  // namespace jf::lower
