// Rows that a condition leaves out, such as those behind the last group, are neither read nor computed.
#pragma once

#include "base/target.h"
#include "loops/kernel.h"

namespace jf::lower {

// Where a loop works with a condition that is the same in all of it, and reads nothing where that does not hold: on the
// CPU it becomes two, one for either case (loop unswitching). On CUDA the loads alone get the condition, since
// iterations that are unrolled have their loads on the way together.
void unswitch(loops::Kernel& kernel, Platform platform);

}  // namespace jf::lower
