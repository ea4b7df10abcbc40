// The strategies by name, for people who want one of them for a whole fusion: whether it fits, the numbers it decides
// with, and the schedule that the numbers describe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/parameters.h"
#include "base/target.h"
#include "ir/fusion.h"
#include "plan/plan.h"
#include "schedule/schedule.h"

namespace jf::plan {

// "pointwise", "transpose" and "reduction", the one that the compiler tries first standing first.
const std::vector<std::string>& strategies();

// What the compiler would choose for the whole fusion as one kernel. Throws UserError where the strategy cannot make
// it.
Parameters parameters_of(const ir::Fusion& fusion, std::string_view strategy, const Target& target);

// The kernel of a plan's only segment with all inputs and outputs of the plan's fusion, in their order; the parts of a
// concat stand for it. `kernel` has those of the segment in its order.
ir::Fusion in_order(const ir::Fusion& whole, const Segment& segment, ir::Fusion kernel);

struct StrategyKernel {
  // The same inputs and outputs in their order, as as_one_kernel() has them; it may have copies of values.
  ir::Fusion fusion;
  schedule::Schedule schedule;
};
// Parameters that are not given are the compiler's choice. Throws UserError for one that the strategy does not have or
// that is out of its range.
StrategyKernel schedule_by(const ir::Fusion& fusion, std::string_view strategy, const Target& target,
                           const Parameters& given);

}  // namespace jf::plan
