// What follows element by element from folds of the rows of components, such as the logarithm of a sum or a conversion
// of it, is computed in the kernel of those: that saves a launch and what would be stored between the two.
#pragma once

#include <vector>

#include "plan/segment.h"

namespace jf::plan {

// The same values from fewer segments, in an order in which they can run.
std::vector<Draft> with_what_follows_folds(const ir::Fusion& fusion, std::vector<Draft> drafts);

}  // namespace jf::plan
