// Reshapes leave a fusion before it is cut into segments.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// The same computation with axes cut (plan/axis_cuts.h) so that its reshapes are gone, but for those that have to read
// their operand from memory. Inputs and outputs stay in their order, each in the same memory, maybe of another shape.
ir::Fusion without_reshapes(const ir::Fusion& fusion);

}  // namespace jf::plan
