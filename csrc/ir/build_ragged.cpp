// Nested values in the builder: what is computed element by element is partitioned where it comes from.
#include <algorithm>

#include "base/error.h"
#include "ir/build.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace jf::ir {

ValueId Builder::partition(ValueId x, ValueId starts, ValueId extents, int64_t axis, int64_t most) {
  for (ValueId id : {x, starts, extents}) value(id, "partition");
  infer(fusion_, OpKind::kPartition, {x, starts, extents}, Nest{axis, most}, {"", DType::kPred, {}});
  return partitioned(x, starts, extents, axis, most);
}

void Builder::note_partition(ValueId x, ValueId starts, ValueId extents, int64_t axis, int64_t most, ValueId nested) {
  for (ValueId id : {x, starts, extents, nested}) value(id, "note_partition");
  const Value expected =
      infer(fusion_, OpKind::kPartition, {x, starts, extents}, Nest{axis, most}, {"", DType::kPred, {}});
  const Value& found = fusion_.values[nested];
  const int ragged = ragged_axis(expected);
  const bool same = expected.dtype == found.dtype && shape(expected) == shape(found) && ragged == ragged_axis(found) &&
                    expected.axes[ragged].extents == found.axes[ragged].extents &&
                    expected.axes[ragged].by == found.axes[ragged].by;
  JF_REQUIRE(same, "[note_partition] expected a value like a partition of ", fusion_.values[x].name, ", ",
             print_type(fusion_, expected), ", got ", print_type(fusion_, found));
  partitions_.insert_or_assign({x, starts, extents, axis, most}, nested);
}

ValueId Builder::partitioned(ValueId x, ValueId starts, ValueId extents, int64_t axis, int64_t most) {
  std::vector<int64_t> key = {x, starts, extents, axis, most};
  if (const auto found = partitions_.find(key); found != partitions_.end()) return found->second;
  auto again = [&](ValueId id, int64_t at) { return partitioned(id, starts, extents, at, most); };
  const auto outer = static_cast<int64_t>(fusion_.values[extents].axes.size()) - 1;
  const bool plain = outer == 0;  // the same components wherever the axis stands
  ValueId result = -1;
  const Deeper deeper(*this);
  if (const Op* defining = too_deep() ? nullptr : definition(x); defining != nullptr) {
    const Op op = *defining;  // which adding ops may move
    const auto* dims = std::get_if<Dims>(&op.attribute);
    if (op.kind == OpKind::kSelect && is_true(again(op.inputs[0], axis))) {
      result = again(op.inputs[1], axis);
    } else if (info(op.kind).op_class == OpClass::kPointwise) {
      std::vector<ValueId> operands;
      for (ValueId id : op.inputs) operands.push_back(again(id, axis));
      result = add_op(op.kind, std::move(operands), op.attribute, fusion_.values[x].dtype, {}, op.label);
    } else if (op.kind == OpKind::kBroadcast) {
      const std::vector<Axis>& from = fusion_.values[op.inputs[0]].axes;
      const std::vector<int64_t> whole = shape(fusion_.values[x]);
      const auto found = std::find(dims->dims.begin(), dims->dims.end(), axis);
      const auto source = static_cast<size_t>(found - dims->dims.begin());
      const bool varies = found != dims->dims.end() && from[source].extent == whole[axis];
      // Whether the operand has the axes that extents stand for.
      bool same_outer = outer == 0 || static_cast<int64_t>(source) == outer;
      for (int64_t i = 0; i < outer && varies && same_outer; ++i) {
        same_outer &= dims->dims[i] == i && from[i].extent == whole[i];
      }
      std::vector<int64_t> to = whole, where, by;
      to[axis] = fusion_.values[extents].axes.back().extent;
      to.insert(to.begin() + axis + 1, varies ? most : 1);
      for (size_t i = 0; i < dims->dims.size(); ++i) {
        const int64_t dim = dims->dims[i];
        if (varies && i == source) where.push_back(dim);
        where.push_back(dim >= axis ? dim + 1 : dim);
      }
      for (int64_t i = axis - outer; i <= axis; ++i) by.push_back(i);
      if (varies && same_outer) {
        result = broadcast(again(op.inputs[0], static_cast<int64_t>(source)), to, where);
      } else if (!varies) {
        result = stretch(broadcast(op.inputs[0], to, where), extents, {axis + 1, most, by});
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

bool Builder::is_true(ValueId value) const {
  const Op* op = definition(value);
  while (op != nullptr && (op->kind == OpKind::kBroadcast || op->kind == OpKind::kStretch)) {
    op = definition(op->inputs[0]);
  }
  return op != nullptr && op->kind == OpKind::kConstant && op->attribute == Attribute{Constant{true}};
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
