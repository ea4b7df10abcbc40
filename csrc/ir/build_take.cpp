// Reading at computed places in the builder: only what is taken is computed.
#include <algorithm>

#include "base/error.h"
#include "base/lists.h"
#include "ir/build.h"
#include "ir/infer.h"

namespace jf::ir {

ValueId Builder::take(ValueId x, std::span<const ValueId> indices, std::span<const int64_t> axes,
                      std::span<const int64_t> dims, std::span<const int64_t> to) {
  const std::vector<int64_t> from = shape(value(x, "take"));
  JF_REQUIRE(dims.size() == from.size(), "[take] expected a result axis or -1 for each of ", from.size(), " axes, got ",
             dims.size());
  Take where;
  where.axes.assign(axes.begin(), axes.end());
  where.dims.assign(dims.begin(), dims.end());
  where.starts.assign(from.size(), 0);
  where.strides.assign(from.size(), 1);
  for (int64_t axis : axes) {
    JF_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(from.size()), "[take] expected axes below rank ", from.size(),
               ", got ", axis);
    const int64_t dim = dims[axis];
    const int64_t window = dim < 0 || dim >= static_cast<int64_t>(to.size()) ? 1 : to[dim];
    where.limits.push_back(from[axis] - window);
  }
  std::vector<ValueId> inputs = {x};
  inputs.insert(inputs.end(), indices.begin(), indices.end());
  infer(fusion_, OpKind::kTake, inputs, where, {"", DType::kPred, axes_of(to)});
  return take(std::move(inputs), std::move(where), {to.begin(), to.end()});
}

ValueId Builder::take(std::vector<ValueId> inputs, Take where, const std::vector<int64_t>& to) {
  std::vector<int64_t> key(inputs.begin(), inputs.end());
  const Take& place = where;
  for (const auto* list : {&place.axes, &place.limits, &place.dims, &place.starts, &place.strides, &to}) {
    key.push_back(static_cast<int64_t>(list->size()));
    key.insert(key.end(), list->begin(), list->end());
  }
  if (const auto found = takes_.find(key); found != takes_.end()) return found->second;
  const ValueId result = taken(std::move(inputs), std::move(where), to);
  takes_.emplace(std::move(key), result);
  return result;
}

ValueId Builder::taken(std::vector<ValueId> inputs, Take where, const std::vector<int64_t>& to) {
  const Deeper deeper(*this);
  const Op* defining = inner_definition(inputs[0]);
  const DType dtype = fusion_.values[inputs[0]].dtype;
  if (defining != nullptr) {
    const Op op = *defining;  // which adding ops may move
    const ValueId source = op.inputs.empty() ? -1 : op.inputs[0];
    auto again = [&](Take inner) {
      inputs[0] = source;
      return take(std::move(inputs), std::move(inner), to);
    };
    if (op.kind == OpKind::kTranspose) {
      const std::vector<int64_t>& order = std::get<Dims>(op.attribute).dims;
      Take inner = where;
      for (size_t a = 0; a < order.size(); ++a) {
        inner.dims[order[a]] = where.dims[a];
        inner.starts[order[a]] = where.starts[a];
        inner.strides[order[a]] = where.strides[a];
      }
      for (int64_t& axis : inner.axes) axis = order[axis];
      return again(std::move(inner));
    }
    if (op.kind == OpKind::kBroadcast) return taken_once(op, std::move(inputs), where, to);
    if (op.kind == OpKind::kTake) {
      if (const ValueId both = taken_at_once(op, inputs, where, to); both >= 0) return both;
    }
    if (op.kind == OpKind::kSqueeze) {
      for (int64_t dim : std::get<Dims>(op.attribute).dims) {
        where.dims.insert(where.dims.begin() + dim, -1);
        where.starts.insert(where.starts.begin() + dim, 0);
        where.strides.insert(where.strides.begin() + dim, 1);
        for (int64_t& axis : where.axes) axis += axis >= dim;
      }
      return again(std::move(where));
    }
    if (op.kind == OpKind::kSlice) {
      const Slice& slice = std::get<Slice>(op.attribute);
      const bool dense =
          std::all_of(where.axes.begin(), where.axes.end(), [&](int64_t axis) { return slice.strides[axis] == 1; });
      for (size_t a = 0; dense && a < slice.starts.size(); ++a) {
        where.starts[a] = slice.starts[a] + where.starts[a] * slice.strides[a];
        where.strides[a] *= slice.strides[a];
      }
      if (dense) return again(std::move(where));
    }
    int64_t count = 1;
    for (int64_t extent : to) count *= extent;
    const bool few = count <= elements(fusion_.values[inputs[0]]);
    const bool cheap = info(op.kind).operands != OperandTypes::kFloating || few;
    if (info(op.kind).op_class == OpClass::kPointwise && cheap && is_elementwise(inputs[0], few)) {
      std::vector<ValueId> operands;
      for (ValueId id : op.inputs) {
        inputs[0] = id;
        operands.push_back(take(inputs, where, to));
      }
      return add_op(op.kind, std::move(operands), op.attribute, dtype, {}, op.label);
    }
  }
  return add_op(OpKind::kTake, std::move(inputs), std::move(where), dtype, axes_of(to), "");
}

// From what a broadcast repeats.
ValueId Builder::taken_once(const Op& op, std::vector<ValueId> inputs, const Take& where,
                            const std::vector<int64_t>& to) {
  const std::vector<int64_t>& dims = std::get<Dims>(op.attribute).dims;
  const std::vector<int64_t> from = shape(fusion_.values[op.inputs[0]]), whole = shape(fusion_.values[op.output]);
  std::vector<ValueId> indices;
  Take inner;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool repeats = from[i] != whole[dims[i]];
    inner.dims.push_back(repeats ? -1 : where.dims[dims[i]]);
    inner.starts.push_back(repeats ? 0 : where.starts[dims[i]]);
    inner.strides.push_back(repeats ? 1 : where.strides[dims[i]]);
    for (size_t k = 0; !repeats && k < where.axes.size(); ++k) {
      if (where.axes[k] != dims[i]) continue;
      inner.axes.push_back(static_cast<int64_t>(i));
      inner.limits.push_back(where.limits[k]);
      indices.push_back(inputs[k + 1]);
    }
  }
  if (indices.empty()) return part_once(op.inputs[0], inner, to);
  inputs.assign(1, op.inputs[0]);
  inputs.insert(inputs.end(), indices.begin(), indices.end());
  return take(std::move(inputs), std::move(inner), to);
}

// What is taken along some axes and then along others is taken along all, unless it is taken again and again. -1 where
// the places along some axes are others for every element of the others.
ValueId Builder::taken_at_once(const Op& op, const std::vector<ValueId>& inputs, const Take& where,
                               const std::vector<int64_t>& to) {
  constexpr int64_t kMostTimes = 2;
  const std::vector<int64_t> whole = shape(fusion_.values[op.output]);
  if (product(to) > kMostTimes * product(whole)) return -1;
  const Take own = std::get<Take>(op.attribute);
  const std::vector<ValueId> from = op.inputs;
  for (size_t k = 1; k < from.size(); ++k) {
    const Op* index = definition(from[k]);
    if (index == nullptr || index->kind != OpKind::kBroadcast) return -1;
    const std::vector<int64_t>& dims = std::get<Dims>(index->attribute).dims;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (fusion_.values[index->inputs[0]].axes[i].extent > 1 && contains(where.axes, dims[i])) return -1;
    }
  }
  Take both = own;
  std::vector<ValueId> operands = {from[0]}, others;
  for (size_t a = 0; a < own.dims.size(); ++a) {
    const int64_t middle = own.dims[a];
    if (middle < 0) continue;
    both.dims[a] = where.dims[middle];
    both.starts[a] += own.strides[a] * where.starts[middle];
    both.strides[a] *= where.strides[middle];
    const auto k = std::find(where.axes.begin(), where.axes.end(), middle) - where.axes.begin();
    if (k == std::ssize(where.axes)) continue;
    if (own.strides[a] != 1 || contains(own.axes, static_cast<int64_t>(a))) return -1;
    both.axes.push_back(static_cast<int64_t>(a));
    both.limits.push_back(where.limits[k]);
    others.push_back(inputs[k + 1]);
  }
  for (size_t k = 1; k < from.size(); ++k) {
    std::vector<ValueId> index = inputs;
    index[0] = from[k];
    operands.push_back(take(std::move(index), where, to));
  }
  operands.insert(operands.end(), others.begin(), others.end());
  return take(std::move(operands), std::move(both), to);
}

// Where no index counts.
ValueId Builder::part_once(ValueId x, const Take& where, const std::vector<int64_t>& to) {
  std::vector<int64_t> counts, single, places, order;
  for (size_t i = 0; i < where.dims.size(); ++i) {
    const int64_t dim = where.dims[i];
    counts.push_back(dim < 0 ? 1 : to[dim]);
    if (dim < 0) {
      single.push_back(static_cast<int64_t>(i));
    } else {
      order.push_back(static_cast<int64_t>(places.size()));
      places.push_back(dim);
    }
  }
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return places[a] < places[b]; });
  std::sort(places.begin(), places.end());
  return broadcast(transpose(squeeze(slice(x, {where.starts, where.strides}, counts), single), order), to, places);
}

// Whether a value is computed element by element from inputs and scalars alone, or else from what broadcasts repeat.
bool Builder::is_elementwise(ValueId x, bool or_repeated) const {
  std::vector<ValueId> todo = {x};
  std::vector<bool> seen(fusion_.values.size(), false);
  for (size_t i = 0; i < todo.size(); ++i) {
    const Op* op = definition(todo[i]);
    const bool repeated =
        op != nullptr && op->kind == OpKind::kBroadcast &&
        (fusion_.values[op->inputs[0]].axes.empty() ||
         (or_repeated && elements(fusion_.values[op->inputs[0]]) < elements(fusion_.values[op->output])));
    if (op == nullptr || repeated) continue;
    if (info(op->kind).op_class != OpClass::kPointwise) return false;
    for (ValueId id : op->inputs) {
      if (!seen[id]) todo.push_back(id);
      seen[id] = true;
    }
  }
  return true;
}

// The same place of what a slice of the result has.
Take Builder::part_of(Take take, const Slice& where) {
  for (size_t a = 0; a < take.dims.size(); ++a) {
    if (take.dims[a] < 0) continue;
    take.starts[a] += where.starts[take.dims[a]] * take.strides[a];
    take.strides[a] *= where.strides[take.dims[a]];
  }
  return take;
}

ValueId Builder::slice_of_take(const Op& op, const Slice& where, const std::vector<int64_t>& counts) {
  std::vector<ValueId> inputs = op.inputs;
  for (size_t i = 1; i < inputs.size(); ++i) inputs[i] = sliced(inputs[i], where, counts);
  return take(std::move(inputs), part_of(std::get<Take>(op.attribute), where), counts);
}

}  // namespace jf::ir
