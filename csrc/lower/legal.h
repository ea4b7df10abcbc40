// What a schedule must fulfil so that one loop nest computes the segment in registers.
#pragma once

#include "base/target.h"
#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::lower {

// Throws UserError that names the value and the call that mends it.
void check_legal(const ir::Fusion& segment, const schedule::Schedule& schedule, const Target& target);

}  // namespace jf::lower
