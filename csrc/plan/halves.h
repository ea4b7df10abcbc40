// A segment cut in two, for where no loops go together for all of it.
#pragma once

#include <optional>
#include <utility>

#include "ir/fusion.h"
#include "plan/plan.h"

namespace jf::plan {

// The first half of the ops that compute something, and the others; values between the two are outputs of the first
// and inputs of the second. Nothing where there is one such op, or values that are not kept in memory.
std::optional<std::pair<Segment, Segment>> in_halves(const ir::Fusion& segment);

}  // namespace jf::plan
