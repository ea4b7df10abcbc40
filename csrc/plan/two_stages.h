// Reductions as the rest of planning wants them.
//
// A long reduction with few results keeps few kernel blocks busy, so it becomes two: first every run of consecutive
// indices by itself, then the results of the runs. A reduction of nothing becomes its constant, one of single elements
// a view.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// The same inputs and outputs, in the same order. Does not depend on the target, and so neither does what is stored
// between the stages.
ir::Fusion in_two_stages(const ir::Fusion& fusion);

}  // namespace jf::plan
