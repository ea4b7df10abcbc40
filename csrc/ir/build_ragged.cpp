// Nested values in the builder: what is computed element by element is partitioned where it comes from.
#include <algorithm>

#include "base/error.h"
#include "ir/build.h"
#include "ir/infer.h"
#include "ir/ragged.h"
#include "ir/text.h"

namespace jf::ir {

ValueId Builder::partition(ValueId x, ValueId starts, ValueId extents, int64_t axis, int64_t most) {
  for (ValueId id : {x, starts, extents}) value(id, "partition");
  const std::vector<int> ragged = ragged_axes(fusion_.values[x]);
  if (ragged.empty()) {
    infer(fusion_, OpKind::kPartition, {x, starts, extents}, Nest{axis, most}, {"", DType::kPred, {}});
  } else {
    check_level(fusion_, "partition", x, axis);
    const auto outer = std::ssize(fusion_.values[extents].axes) - 1;
    for (int64_t i = 0; i < outer; ++i) check_level(fusion_, "partition", x, i);
    check_partition(fusion_, x, starts, extents, axis, most);
  }
  return partitioned(x, starts, extents, axis, most);
}

// A partition again, along one more axis of its result.
ValueId Builder::partition_again(const Op& op, ValueId starts, ValueId extents, int64_t axis, int64_t most) {
  struct Cut {
    int64_t axis, most;
    ValueId starts, extents;
  };
  const Nest& nest = std::get<Nest>(op.attribute);
  if (nest.components != 1) return -1;
  std::vector<Cut> cuts = {{nest.axis, nest.most, op.inputs[1], op.inputs[2]}};
  for (size_t i = 0; i < nest.also.size(); i += 2) {
    cuts.push_back({nest.also[i], nest.also[i + 1], op.inputs[3 + i], op.inputs[4 + i]});
  }
  // Each of those made one axis more.
  const std::vector<int> made = ragged_axes(fusion_.values[op.output]);
  const auto before = std::count_if(made.begin(), made.end(), [&](int ragged) { return ragged < axis; });
  cuts.push_back({axis - before, most, starts, extents});
  std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.axis < b.axis; });
  Nest all{cuts[0].axis, cuts[0].most};
  std::vector<ValueId> inputs = {op.inputs[0]};
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (i > 0) all.also.insert(all.also.end(), {cuts[i].axis, cuts[i].most});
    inputs.insert(inputs.end(), {cuts[i].starts, cuts[i].extents});
  }
  return add_op(OpKind::kPartition, std::move(inputs), all, fusion_.values[op.output].dtype, {}, "");
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
  if (const Op* defining = inner_definition(x); defining != nullptr) {
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
    } else if (op.kind == OpKind::kPartition && ragged_axis(fusion_.values[x]) >= 0) {
      result = partition_again(op, starts, extents, axis, most);
    } else if (op.kind == OpKind::kStretch) {
      Nest nest = std::get<Nest>(op.attribute);
      nest.axis += nest.axis > axis;
      for (int64_t& by : nest.by) by += by > axis;
      result = stretch(again(op.inputs[0], axis), op.inputs[1], nest);
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
  const std::vector<int> ragged = ragged_axes(fusion_.values[like]);
  JF_REQUIRE(!ragged.empty(), "[broadcast_like] expected a nested value to be like, got a dense one; use broadcast");
  const std::vector<int64_t> to = shape(fusion_.values[like]);
  const Value& own = value(x, "broadcast_like");
  JF_REQUIRE(ragged_axes(own).size() < ragged.size(), "[broadcast_like] ", own.name, " is nested",
             ragged.size() > 1 ? " as much" : "", "; use broadcast");
  for (int axis : ragged) {
    const auto along = static_cast<size_t>(std::find(dims.begin(), dims.end(), axis) - dims.begin());
    const bool fits =
        along >= std::min(dims.size(), own.axes.size()) || own.axes[along].extent == 1 || own.axes[along].extents >= 0;
    JF_REQUIRE(fits, "[broadcast_like] axis ", axis,
               " is ragged, and a dense value has no rows for it; partition the value");
  }
  return nested_full(x, to, {dims.begin(), dims.end()}, {"", own.dtype, axes});
}

ValueId Builder::combine(ValueId x, ValueId starts, int64_t rows, int64_t components) {
  return add_op(OpKind::kCombine, {x, starts}, Combine{rows, components}, value(x, "combine").dtype, {}, "");
}

ValueId Builder::combine(ValueId x, std::span<const ValueId> starts, std::span<const int64_t> rows) {
  JF_REQUIRE(!starts.empty() && starts.size() == rows.size(),
             "[combine] expected starts and rows for each ragged axis, got ", starts.size(), " and ", rows.size());
  std::vector<ValueId> inputs = {x};
  inputs.insert(inputs.end(), starts.begin(), starts.end());
  Combine attribute{rows[0], 1, {rows.begin() + 1, rows.end()}};
  return add_op(OpKind::kCombine, std::move(inputs), attribute, value(x, "combine").dtype, {}, "");
}

}  // namespace jf::ir
