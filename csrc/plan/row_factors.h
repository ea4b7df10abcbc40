// Sums of products with a factor that is the same for all summands, such as the scale of a normalized row.
//
// sum_j a[i,j] * r[i] becomes r[i] * sum_j a[i,j] where r waits for another fold and a does not: one pass over the row,
// and one meeting of the threads, less. A sum of several such products becomes the sum of theirs. Of anything else a
// sum is not taken apart: x - max(x) is exact where the sums of x and of its maximum are not.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// The same inputs and outputs, in the same order.
ir::Fusion without_row_factors(const ir::Fusion& fusion);

}  // namespace jf::plan
