// Axes that rows are counted along become one.
//
// Of [batch, tokens, columns], norms fold columns and their derivatives also batch and tokens. Where the latter two
// always stand beside each other they are one axis of batch * tokens rows, so that sums across all rows are sums along
// one axis and find room beside the rows' own folds (plan/clusters.h).
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// The same computation. Inputs and outputs stay in their order, each in the same memory, maybe of another shape.
ir::Fusion with_merged_axes(ir::Fusion fusion);

}  // namespace jf::plan
