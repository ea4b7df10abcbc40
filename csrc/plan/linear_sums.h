// Sums of values that are multiples of what is known only after other folds.
//
// A sum of x * s, where s is the same for all elements that are folded, is s times the sum of x. Where s comes from
// other folds of the row and x does not, the row need not wait for them: layer norm's derivative goes along each row
// three times instead of four, softmax's in one fold less.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// The same inputs and outputs, in the same order. A sum changes only where fewer folds then come one after the other.
ir::Fusion with_linear_sums(const ir::Fusion& fusion);

}  // namespace jf::plan
