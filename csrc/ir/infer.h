// The type of an op's result.
#pragma once

#include "ir/fusion.h"

namespace jf::ir {

// The result type that `op` must have, from its operands; `stated` is used where the rule is kStated. Shared by build
// and verify, so that a built fusion cannot differ from a verified one. Throws UserError where operands do not fit.
Value infer(const Fusion& fusion, OpKind kind, const std::vector<ValueId>& inputs, const Attribute& attribute,
            const Value& stated);

}  // namespace jf::ir
