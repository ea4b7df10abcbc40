// Whether a shared value's axes in memory are the truth: they tell all its elements apart.
#pragma once

#include <string>

#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::lower {

// Throws UserError, naming a loop axis of the value and the call that mends it, where two elements that are there at
// the same time would be stored in one place.
void check_allocation(const ir::Fusion& segment, const schedule::Schedule& schedule, ir::ValueId value);
// What to call so that a value is inlined in its loop axis `l`: a consumer may not have that axis yet.
std::string how_to_inline(const ir::Fusion& segment, const schedule::Schedule& schedule, ir::ValueId value, int l);

}  // namespace jf::lower
