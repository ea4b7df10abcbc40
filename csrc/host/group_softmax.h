// Whether a fusion is softmax over the rows of groups, or its logarithm, as nested.softmax writes it: one kernel that
// reads each row once then takes the place of those of its plan.
#pragma once

#include <optional>
#include <string>

#include "base/target.h"
#include "grouped/cuda/group_softmax.h"
#include "host/program.h"
#include "ir/fusion.h"

namespace jf::host {

struct FoundSoftmax {
  grouped::GroupSoftmax problem;
  grouped::SoftmaxConfig config;
  ir::ValueId x, extents;
};
// Of the whole fusion; parameters by the name of its kernel, that of the fusion with "_softmax".
std::optional<FoundSoftmax> find_group_softmax(const ir::Fusion& fusion, const Tuning& tuning);

Program softmax_program(const ir::Fusion& fusion, const FoundSoftmax& found, const Target& target);

}  // namespace jf::host
