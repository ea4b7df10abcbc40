#include "ir/unused.h"

namespace jf::ir {

Fusion without_unused(Fusion fusion) {
  // Walk back from the outputs.
  std::vector<bool> needed(fusion.values.size(), false);
  for (ValueId id : fusion.outputs) needed[id] = true;
  for (auto op = fusion.ops.rbegin(); op != fusion.ops.rend(); ++op) {
    if (!needed[op->output]) continue;
    for (ValueId id : op->inputs) needed[id] = true;
  }
  std::vector<ValueId> renumbered(fusion.values.size(), -1);
  Fusion result;
  result.name = std::move(fusion.name);
  auto keep = [&](ValueId id) {
    renumbered[id] = static_cast<ValueId>(result.values.size());
    result.values.push_back(std::move(fusion.values[id]));
  };
  auto renumber = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) id = renumbered[id];
  };
  for (ValueId id : fusion.inputs) keep(id);
  for (Op& op : fusion.ops) {
    if (!needed[op.output]) continue;
    keep(op.output);
    renumber(op.inputs);
    op.output = renumbered[op.output];
    result.ops.push_back(std::move(op));
  }
  for (Value& value : result.values) {
    for (Axis& axis : value.axes) axis.extents = axis.extents < 0 ? -1 : renumbered[axis.extents];
  }
  renumber(fusion.inputs);
  renumber(fusion.outputs);
  result.inputs = std::move(fusion.inputs);
  result.outputs = std::move(fusion.outputs);
  return result;
}

}  // namespace jf::ir
