// Where the rows of each group end, found in a fusion.
#pragma once

#include "ir/fusion.h"

namespace jf::host {

// Whether the value is, for groups of `extents` that follow each other in `m` rows, the row after each group's last:
// the sums of the extents, which it takes within [0, m]. The number of such ends that are not above a row is then the
// row's group, and that of a padding row is the number of groups.
bool is_group_ends(const ir::Fusion& fusion, ir::ValueId value, ir::ValueId extents, int64_t m);

}  // namespace jf::host
