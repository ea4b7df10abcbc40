// Schedules of the compiler's own for people to go on from: of one strategy, tried to the end, so that what it makes
// can be lowered, or whatever it would run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
#include "host/program.h"
#include "ir/fusion.h"
#include "plan/strategies.h"

namespace jf::host {

// plan::schedule_by, throwing UserError also where the target cannot run the schedule.
plan::StrategyKernel schedule_by(const ir::Fusion& fusion, std::string_view strategy, const Target& target,
                                 const Parameters& given);
// Why the strategy cannot make the fusion as one kernel; empty where it can.
std::string why_not(const ir::Fusion& fusion, std::string_view strategy, const Target& target);
// Of every generated kernel that the compiler makes. A single one has all inputs and outputs in their order.
std::vector<Scheduled> propose(const ir::Fusion& fusion, const Target& target);

}  // namespace jf::host
