// What a schedule must fulfil so that one kernel computes the segment.
#pragma once

#include "base/target.h"
#include "ir/fusion.h"
#include "loops/kernel.h"
#include "schedule/schedule.h"

namespace jf::lower {

// Throws UserError that names the value and the call that mends it.
void check_legal(const ir::Fusion& segment, const schedule::Schedule& schedule, const Target& target);
// Throws UserError where the target cannot run a kernel of this size.
void check_size(const loops::Kernel& kernel, const Target& target);

}  // namespace jf::lower
