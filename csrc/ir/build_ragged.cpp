// Nested values in the builder: what is computed element by element is partitioned where it comes from.
#include <algorithm>

#include "base/error.h"
#include "ir/build.h"
#include "ir/verify.h"

namespace jf::ir {

ValueId Builder::partition(ValueId x, ValueId starts, ValueId extents, int64_t axis, int64_t most) {
  for (ValueId id : {x, starts, extents}) value(id, "partition");
  infer(fusion_, OpKind::kPartition, {x, starts, extents}, Nest{axis, most}, {"", DType::kPred, {}});
  return partitioned(x, starts, extents, axis, most);
}

ValueId Builder::partitioned(ValueId x, ValueId starts, ValueId extents, int64_t axis, int64_t most) {
  std::vector<int64_t> key = {x, starts, extents, axis, most};
  if (const auto found = partitions_.find(key); found != partitions_.end()) return found->second;
  auto again = [&](ValueId id, int64_t at) { return partitioned(id, starts, extents, at, most); };
  const bool plain = fusion_.values[extents].axes.size() == 1;  // the same components wherever the axis stands
  ValueId result = -1;
  if (const Op* defining = definition(x); defining != nullptr) {
    const Op op = *defining;  // which adding ops may move
    const auto* dims = std::get_if<Dims>(&op.attribute);
    if (info(op.kind).op_class == OpClass::kPointwise) {
      std::vector<ValueId> operands;
      for (ValueId id : op.inputs) operands.push_back(again(id, axis));
      result = add_op(op.kind, std::move(operands), op.attribute, fusion_.values[x].dtype, {}, op.label);
    } else if (op.kind == OpKind::kBroadcast && plain) {
      const std::vector<Axis>& from = fusion_.values[op.inputs[0]].axes;
      const std::vector<int64_t> whole = shape(fusion_.values[x]);
      const auto found = std::find(dims->dims.begin(), dims->dims.end(), axis);
      const auto source = static_cast<size_t>(found - dims->dims.begin());
      std::vector<int64_t> to = whole, where;
      to[axis] = fusion_.values[extents].axes[0].extent;
      const bool varies = found != dims->dims.end() && from[source].extent == whole[axis];
      to.insert(to.begin() + axis + 1, varies ? most : 1);
      for (size_t i = 0; i < dims->dims.size(); ++i) {
        const int64_t dim = dims->dims[i];
        if (varies && i == source) where.push_back(dim);
        where.push_back(dim >= axis ? dim + 1 : dim);
      }
      if (varies) {
        result = broadcast(again(op.inputs[0], static_cast<int64_t>(source)), to, where);
      } else {
        result = stretch(broadcast(op.inputs[0], to, where), extents, {axis + 1, most, {axis}});
      }
    } else if (op.kind == OpKind::kTranspose && plain) {
      const int64_t source = dims->dims[axis];
      std::vector<int64_t> order;
      for (int64_t dim : dims->dims) {
        if (dim == source) order.push_back(dim);
        order.push_back(dim >= source ? dim + 1 : dim);
      }
      result = transpose(again(op.inputs[0], source), order);
    }
  }
  if (result < 0) {
    result = add_op(OpKind::kPartition, {x, starts, extents}, Nest{axis, most}, fusion_.values[x].dtype, {}, "");
  }
  partitions_.emplace(std::move(key), result);
  return result;
}

ValueId Builder::stretch(ValueId x, ValueId extents, const Nest& nest) {
  return add_op(OpKind::kStretch, {x, extents}, nest, value(x, "stretch").dtype, {}, "");
}

ValueId Builder::broadcast_like(ValueId x, ValueId like, std::span<const int64_t> dims) {
  const std::vector<Axis> axes = value(like, "broadcast_like").axes;
  const int axis = ragged_axis(fusion_.values[like]);
  JF_REQUIRE(axis >= 0, "[broadcast_like] expected a nested value to be like, got a dense one; use broadcast");
  const std::vector<int64_t> to = shape(fusion_.values[like]);
  const Value& dense = value(x, "broadcast_like");
  JF_REQUIRE(ragged_axis(dense) < 0, "[broadcast_like] ", dense.name, " is nested; use broadcast");
  const auto along = std::find(dims.begin(), dims.end(), axis);
  const bool one = along == dims.end() || (static_cast<size_t>(along - dims.begin()) < dense.axes.size() &&
                                           dense.axes[along - dims.begin()].extent == 1);
  JF_REQUIRE(one, "[broadcast_like] axis ", axis,
             " is ragged, and a dense value has no rows for it; partition the value");
  return nested_full(x, to, {dims.begin(), dims.end()}, {"", dense.dtype, axes});
}

ValueId Builder::combine(ValueId x, ValueId starts, int64_t rows, int64_t components) {
  return add_op(OpKind::kCombine, {x, starts}, Combine{rows, components}, value(x, "combine").dtype, {}, "");
}

}  // namespace jf::ir
