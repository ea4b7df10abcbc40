// Folds of few elements of pairs.
//
// Where arrays are broadcast against each other, all pairs are far more than there is in memory: a distance is best
// computed where it is needed. A fold of its few components would be a kernel that stores it. Written out, as ops on
// one component after the other, it is part of whatever kernel needs it.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// The same inputs and outputs, in the same order.
ir::Fusion with_folds_of_pairs_written_out(const ir::Fusion& fusion);

}  // namespace jf::plan
