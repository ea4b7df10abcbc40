// A fusion as the one kernel that makes it: what a person schedules.
#pragma once

#include <string_view>

#include "ir/fusion.h"

namespace jf::plan {

// The same computation without reshapes of what it computes and without concats: their parts are outputs, each at its
// place in the array that they are together (ir/results.h). Inputs and outputs stay in their order, each in the same
// memory, maybe of another shape; a fusion that has neither stays as it is. Throws UserError, in the name of `call`,
// where an op reads such an array elsewhere than it is computed, so that it must be stored before.
ir::Fusion as_one_kernel(const ir::Fusion& fusion, std::string_view call);

}  // namespace jf::plan
