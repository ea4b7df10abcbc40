#include "lower/loose.h"

#include <algorithm>

namespace jf::lower {
namespace {

using ir::Op;
using ir::OpClass;
using ir::OpKind;

// By value: whether no element is below zero; unknown ones may be.
std::vector<bool> never_negative(const ir::Fusion& fusion) {
  std::vector<bool> result(fusion.values.size(), false);
  for (const Op& op : fusion.ops) {
    const auto is = [&](size_t i) { return static_cast<bool>(result[op.inputs[i]]); };
    switch (op.kind) {
      case OpKind::kConstant: {
        const auto& value = std::get<ir::Constant>(op.attribute).value;
        result[op.output] = std::visit([](auto number) { return number >= 0; }, value);
        break;
      }
      case OpKind::kExp:
      case OpKind::kExp2:
      case OpKind::kLogistic:
      case OpKind::kAbs:
      case OpKind::kSquare:
      case OpKind::kSqrt: result[op.output] = true; break;
      case OpKind::kMax: result[op.output] = is(0) || is(1); break;
      case OpKind::kAdd:
      case OpKind::kMul:
      case OpKind::kDiv: result[op.output] = is(0) && is(1); break;
      case OpKind::kSelect: result[op.output] = is(1) && is(2); break;
      case OpKind::kLog1p:
      case OpKind::kTanh:
      case OpKind::kConvert:
      case OpKind::kCopy: result[op.output] = is(0); break;
      default: result[op.output] = ir::info(op.kind).op_class == OpClass::kView && op.inputs.size() == 1 && is(0);
    }
  }
  return result;
}

}  // namespace

std::vector<bool> loose_values(const ir::Fusion& fusion) {
  std::vector<bool> loose(fusion.values.size(), true);
  const std::vector<bool> sums_of = never_negative(fusion);
  for (ir::ValueId id : fusion.outputs) {
    const DType dtype = fusion.values[id].dtype;
    loose[id] = compute_dtype(dtype) != dtype;
  }
  for (auto op = fusion.ops.rbegin(); op != fusion.ops.rend(); ++op) {
    // Those whose result is off by no larger a share of itself than an operand is.
    const bool adds = op->kind == OpKind::kAdd && sums_of[op->inputs[0]] && sums_of[op->inputs[1]];
    const bool keeps_errors = op->kind == OpKind::kMul || op->kind == OpKind::kDiv || op->kind == OpKind::kNeg ||
                              op->kind == OpKind::kConvert || op->kind == OpKind::kCopy ||
                              op->kind == OpKind::kSelect || op->kind == OpKind::kTanh || adds;
    const bool fine = op->kind == OpKind::kReduceSum || (keeps_errors && loose[op->output]);
    for (ir::ValueId id : op->inputs) loose[id] = loose[id] && fine;
  }
  return loose;
}

}  // namespace jf::lower
