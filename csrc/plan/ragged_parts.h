// Nested values as the rest of planning wants them: the rows of every component in parts.
//
// One component may have all rows, and nobody knows before the kernel runs. So each is cut into as many parts as it
// needs, of equally many rows but for its last one, and the parts of all components stand side by side in one axis,
// which has room for as many as there can be: what folds rows folds those of each part, and then the parts of each
// component, in a fixed order; what combines them stores each part by itself. A search finds the component of a part.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// Whether any value of a fusion is nested.
bool has_nested(const ir::Fusion& fusion);
// The same inputs and outputs, in the same order. Every value computed from nested ones alone, up to a fold of their
// rows or to what combines them, has parts in the place of components. Does not depend on the target.
ir::Fusion in_ragged_parts(const ir::Fusion& fusion);

}  // namespace jf::plan
