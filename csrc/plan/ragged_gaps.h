// What combine leaves out: the rows between the ends of components and the starts of the next ones, which are zero.
//
// A row that no component has lies before the first component in order that starts behind it, and behind the end of the
// one before that. So it is in one of these gaps however components lie; where they are not in order, gaps may hold
// rows of components, too, so they are filled before.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// Zeros in the gaps of a combine of `fusion`, nothing elsewhere; its inputs are the starts and the extents.
ir::Fusion zeros_in_gaps(const ir::Fusion& fusion, const ir::Op& combine);
// Whether filling the gaps alone is worth finding them. Does not depend on the target.
bool is_worth_gaps(const ir::Value& combined, int64_t rows);

}  // namespace jf::plan
