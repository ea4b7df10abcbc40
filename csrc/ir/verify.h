// Checks every invariant of ir/fusion.h; throws UserError, since a fusion may come from text that a person wrote.
#pragma once

#include "ir/fusion.h"

namespace jf::ir {

void verify(const Fusion& fusion);

}  // namespace jf::ir
