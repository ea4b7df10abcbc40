// Ops at the end of a fusion, for what writes one anew op by op: nothing folds and nothing is reused, as ir::Builder
// does.
#pragma once

#include <string>
#include <vector>

#include "ir/fusion.h"

namespace jf::ir {

// The op's value: its type follows from the operands and `stated` (ir/infer.h), its name is that of `stated`.
ValueId append(Fusion& fusion, OpKind kind, std::vector<ValueId> inputs, Attribute attribute, const Value& stated,
               const std::string& label = "");

}  // namespace jf::ir
