// What a program says of components: that no two of them have a row in common.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/fusion.h"

namespace jf::plan {

// Whether extents are those of components that begin where the one before ends, cut off behind `rows`, as are starts:
// then there are no more than that of all, if none is negative.
// `defined_by`: the op that defines each value, null for inputs.
bool share_no_rows(const std::vector<const ir::Op*>& defined_by, const ir::Fusion& whole, ir::ValueId extents,
                   int64_t rows);

}  // namespace jf::plan
