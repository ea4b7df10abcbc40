// What reaches no output is not computed.
#pragma once

#include "ir/fusion.h"

namespace jf::ir {

// The fusion without ops that reach no output; all inputs stay. Inputs first, then results in the order of their ops:
// the order in which the text form defines them.
Fusion without_unused(Fusion fusion);

}  // namespace jf::ir
