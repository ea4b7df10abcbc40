// Reductions as the rest of planning wants them.
//
// A long reduction with few results keeps few kernel blocks busy, so it becomes two: first every run of consecutive
// indices by itself, then the results of the runs. A reduction of nothing becomes its constant, one of single elements
// a view.
#pragma once

#include "base/target.h"
#include "ir/fusion.h"

namespace jf::plan {

// The same inputs and outputs, in the same order. How many parts there are and which rows a part has depends on the
// target: on CUDA a part has those that begin alike in memory, where rows begin anywhere.
ir::Fusion in_two_stages(const ir::Fusion& fusion, const Target& target);

// Whether it has reductions of parts.
bool has_parts(const ir::Fusion& fusion);

}  // namespace jf::plan
