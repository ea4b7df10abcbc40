// Checks every invariant of ir/fusion.h; throws UserError, since a fusion may come from text that a person wrote.
#pragma once

#include "ir/fusion.h"

namespace jf::ir {

void verify(const Fusion& fusion);

// The result type that `op` must have, from its operands; `stated` is used where the rule is kStated. Shared by build
// and verify, so that a built fusion cannot differ from a verified one.
Value infer(const Fusion& fusion, OpKind kind, const std::vector<ValueId>& inputs, const Attribute& attribute,
            const Value& stated);

}  // namespace jf::ir
