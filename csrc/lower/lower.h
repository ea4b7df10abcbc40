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

// kNest: one nest, which becomes part of another kernel; no loop becomes two.
enum class Loops : bool { kAny, kNest };

loops::Kernel lower(const ir::Fusion& segment, const schedule::Schedule& schedule, const Target& target,
                    Loops loops = Loops::kAny);

}  // namespace jf::lower
