// One strategy for a whole fusion, tried to the end: what it makes can be lowered.
#pragma once

#include <string>
#include <string_view>

#include "base/target.h"
#include "ir/fusion.h"
#include "plan/strategies.h"

namespace jf::host {

// plan::schedule_by, throwing UserError also where the target cannot run the schedule.
plan::StrategyKernel schedule_by(const ir::Fusion& fusion, std::string_view strategy, const Target& target,
                                 const Parameters& given);
// Why the strategy cannot make the fusion as one kernel; empty where it can.
std::string why_not(const ir::Fusion& fusion, std::string_view strategy, const Target& target);

}  // namespace jf::host
