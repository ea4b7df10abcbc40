// Loops for values with several ragged axes, such as every pair of two rows of one component.
//
// What no fold takes is divided: components and dense axes into tasks or blocks, rows in turn among blocks too. What is
// folded is a loop inside, of threads where it is the innermost one. Loops over rows end where those do.
#pragma once

#include "base/target.h"
#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::plan {

bool has_several_ragged(const ir::Fusion& segment);
schedule::Schedule several_ragged_schedule(const ir::Fusion& segment, Platform platform);

}  // namespace jf::plan
