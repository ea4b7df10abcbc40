// What ops do with nested values, those with a ragged axis: the rules of ir/verify.h for them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ir/fusion.h"

namespace jf::ir {

// Throws UserError where an op cannot take its operands because one of them is nested; it says what to do instead.
void check_nested(const Fusion& fusion, const OpInfo& op, const std::vector<ValueId>& inputs,
                  const Attribute& attribute);

// Throws where pointwise operands, or parts of one value, differ in their ragged axes.
void check_equal(const Fusion& fusion, std::string_view op, std::span<const ValueId> inputs);
// Throws where an axis of a value cannot become ragged, since it is or indexes another one's extents.
void check_level(const Fusion& fusion, const char* op, ValueId value, int64_t axis);

// As infer, which checks dtypes before.
// Refuses an axis, extents or starts that do not fit a value, dense or nested.
void check_partition(const Fusion& fusion, ValueId x, ValueId starts, ValueId extents, int64_t axis, int64_t most);
Value infer_partition(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute);
Value infer_stretch(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute);
Value infer_combine(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute);

// A ragged axis among axes that are an operand's: what was the operand's axis i is now axis to[i].
void renumber_by(std::vector<Axis>& axes, std::span<const int64_t> to);

}  // namespace jf::ir
