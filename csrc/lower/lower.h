// From a segment and its schedule to the loop program of one kernel.
//
// A schedule that no kernel can follow is refused. Lanes that an access cannot follow evenly become a serial loop:
// slower, not wrong.
#pragma once

#include "base/target.h"
#include "ir/fusion.h"
#include "loops/kernel.h"
#include "schedule/schedule.h"

namespace jf::lower {

loops::Kernel lower(const ir::Fusion& segment, const schedule::Schedule& schedule, const Target& target);

}  // namespace jf::lower
