// Which values may be computed with a few wrong bits, since what is made of them is rounded.
#pragma once

#include <vector>

#include "ir/fusion.h"

namespace jf::lower {

// By value, whether only sums are made of it, and products, quotients, additions of what is not negative and the like
// that are rounded to 16 bits: relative errors of a few units in float32's last place go unseen there.
std::vector<bool> loose_values(const ir::Fusion& fusion);

}  // namespace jf::lower
