#include "plan/joined_folds.h"

#include <algorithm>
#include <vector>

#include "base/lists.h"
#include "ir/unused.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::ValueId;

// Elements of a fold whose results are worth as much as what it reads.
constexpr int64_t kFewFolded = 16;

// The op as a fold of whole axes that rounds nothing in between.
const ir::Reduce* plain_fold(const Fusion& fusion, const Op& op) {
  const ir::Reduce* reduce = std::get_if<ir::Reduce>(&op.attribute);
  const DType dtype = fusion.values[op.output].dtype;
  const bool plain = reduce != nullptr && reduce->parts == 0 && compute_dtype(dtype) == dtype &&
                     ir::ragged_axis(fusion.values[op.inputs[0]]) < 0;
  return plain ? reduce : nullptr;
}

}  // namespace

Fusion with_joined_folds(const Fusion& fusion) {
  Fusion result = fusion;
  std::vector<int> uses(fusion.values.size(), 0);
  std::vector<Op*> defined_by(fusion.values.size(), nullptr);
  for (const Op& op : fusion.ops) {
    for (ValueId id : op.inputs) ++uses[id];
  }
  bool joined = false;
  for (Op& op : result.ops) {
    defined_by[op.output] = &op;
    const ir::Reduce* outer = plain_fold(result, op);
    const Op* before = outer == nullptr ? nullptr : defined_by[op.inputs[0]];
    const ir::Reduce* inner = before == nullptr || before->kind != op.kind ? nullptr : plain_fold(result, *before);
    if (inner == nullptr || uses[before->output] > 1 || contains(result.outputs, before->output)) continue;
    const ir::Value& operand = result.values[before->inputs[0]];
    if (ir::elements(operand) > kFewFolded * ir::elements(result.values[before->output])) continue;
    std::vector<int64_t> dims = inner->dims;
    int64_t kept = 0;
    for (int64_t axis = 0; axis < std::ssize(operand.axes); ++axis) {
      if (contains(inner->dims, axis)) continue;
      if (contains(outer->dims, kept++)) dims.push_back(axis);
    }
    std::sort(dims.begin(), dims.end());
    op.inputs = before->inputs;
    op.attribute = ir::Reduce{std::move(dims), 0, outer->in_turn};
    joined = true;
  }
  return joined ? ir::without_unused(std::move(result)) : fusion;
}

}  // namespace jf::plan
