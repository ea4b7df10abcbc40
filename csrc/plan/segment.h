// Which ops run together. Near linear in the number of ops.
//
// Values that must be in memory (outputs, operands of grouped products, values that several segments need and that are
// dear to compute again) each belong to one segment; everything else is computed in registers by every segment that
// uses it.
#pragma once

#include <string>
#include <vector>

#include "ir/fusion.h"

namespace jf::plan {

struct Draft {
  bool grouped = false;
  std::string reason;
  std::vector<size_t> ops;           // numbers in fusion.ops, ascending
  std::vector<ir::ValueId> outputs;  // values this segment stores, ascending
};

// In an order in which they can run.
std::vector<Draft> draft_segments(const ir::Fusion& fusion);

}  // namespace jf::plan
