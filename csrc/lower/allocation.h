// Whether a shared value's axes in memory are the truth: they tell all its elements apart.
#pragma once

#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::lower {

// Throws UserError, naming a loop axis of the value and the call that mends it, where two elements that are there at
// the same time would be stored in one place.
void check_allocation(const ir::Fusion& segment, const schedule::Schedule& schedule, ir::ValueId value);

}  // namespace jf::lower
