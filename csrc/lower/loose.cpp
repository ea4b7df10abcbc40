#include "lower/loose.h"

namespace jf::lower {

std::vector<bool> loose_values(const ir::Fusion& fusion) {
  std::vector<bool> loose(fusion.values.size(), true);
  for (ir::ValueId id : fusion.outputs) {
    const DType dtype = fusion.values[id].dtype;
    loose[id] = compute_dtype(dtype) != dtype;
  }
  for (auto op = fusion.ops.rbegin(); op != fusion.ops.rend(); ++op) {
    using ir::OpKind;
    const bool keeps_errors = op->kind == OpKind::kMul || op->kind == OpKind::kDiv || op->kind == OpKind::kNeg ||
                              op->kind == OpKind::kConvert || op->kind == OpKind::kCopy || op->kind == OpKind::kSelect;
    const bool fine = op->kind == OpKind::kReduceSum || (keeps_errors && loose[op->output]);
    for (ir::ValueId id : op->inputs) loose[id] = loose[id] && fine;
  }
  return loose;
}

}  // namespace jf::lower
