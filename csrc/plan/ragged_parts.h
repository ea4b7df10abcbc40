// Nested values as the rest of planning wants them: the rows of every component in parts.
//
// One component may have all rows, and nobody knows before the kernel runs. So each is cut into equally many parts of
// equally many rows: what folds rows folds those of each part, and then the parts, in a fixed order; what combines them
// stores each part by itself. Parts need no search and no prefix sum, and the second stage is a dense fold.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// Whether any value of a fusion is nested.
bool has_nested(const ir::Fusion& fusion);
// The same inputs and outputs, in the same order. Every value computed from nested ones alone, up to a fold of their
// rows or to what combines them, has the axis of the parts behind that of the component. Does not depend on the target.
ir::Fusion in_ragged_parts(const ir::Fusion& fusion);

}  // namespace jf::plan
