// Rows that a condition leaves out, such as those behind the last group, are neither read nor computed.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// Loops that work with a condition that is the same in all of them, and read nothing where that does not hold, become
// two, one for either case. Of 65536 rows of 2048 bf16 with a bias for each group and gelu, an H100 took 197 us however
// few of the rows belong to groups; now 151 where a half do, 101 where none does, 200 where all do, since unrolled
// iterations have their loads on the way one after the other.
void unswitch(loops::Kernel& kernel);

}  // namespace jf::lower
