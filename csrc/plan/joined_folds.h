// Folds of what folds of few elements leave.
//
// A sum along one axis of the sum along another is one sum along both: what lies between is neither stored nor read.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// The same inputs and outputs, in the same order.
ir::Fusion with_joined_folds(const ir::Fusion& fusion);

}  // namespace jf::plan
