// Slices, pads, concats and reshapes of nested values in the builder: what they are partitioned from has them instead.
#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/lists.h"
#include "ir/build.h"
#include "ir/ragged.h"
#include "ir/text.h"

namespace jf::ir {
namespace {

// Neighbouring axes, and what a reshape makes of them.
struct Regrouped {
  std::vector<int64_t> from;  // axes
  std::vector<int64_t> to;    // extents
};
using Regrouping = std::vector<Regrouped>;

// The axes of a nested value that are ragged or say which component an element is of.
std::vector<int64_t> kept_axes(const Value& nested) {
  std::vector<int64_t> kept;
  for (const int axis : ragged_axes(nested)) {
    const std::vector<int64_t>& by = nested.axes[axis].by;
    kept.insert(kept.end(), by.begin(), by.end());
    kept.push_back(axis);
  }
  return kept;
}

// What a partition makes of an axis of its operand: the axes of the component from `component` on, then the ragged one.
struct Cut {
  int64_t component, ragged;
};
std::vector<Cut> cuts_of(const Nest& nest) {
  std::vector<Cut> cuts = {{nest.axis, nest.axis + nest.components}};
  for (size_t i = 0; i < nest.also.size(); i += 2) {
    const int64_t component = nest.also[i] + std::ssize(cuts);  // each of those before made one axis more
    cuts.push_back({component, component + 1});
  }
  return cuts;
}
// Of one number for each axis of a partition: one for each axis of its operand, `rows` along those that are cut.
void to_operand(const std::vector<Cut>& cuts, const std::vector<int64_t>& rows, std::vector<int64_t>& list) {
  for (size_t i = cuts.size(); i-- > 0;) {
    list[cuts[i].component] = rows[i];
    list.erase(list.begin() + cuts[i].component + 1, list.begin() + cuts[i].ragged + 1);
  }
}

// The axes that are neither ragged nor its component between those that are, with what `to` says of them; empty where
// `to` does not keep the latter.
Regrouping regrouping(const std::vector<int64_t>& from, const std::vector<int64_t>& to,
                      const std::vector<int64_t>& kept) {
  Regrouping groups;
  size_t next = 0;
  Regrouped open;
  auto close = [&](int64_t stop) {
    std::vector<int64_t> extents;
    for (int64_t axis : open.from) extents.push_back(from[axis]);
    const int64_t wanted = product(extents);
    while (next < to.size() && product(open.to) * to[next] <= wanted && (product(open.to) < wanted || to[next] == 1)) {
      if (product(open.to) == wanted && to[next] == stop) break;
      open.to.push_back(to[next++]);
    }
    const bool fits = product(open.to) == wanted;
    if (!open.from.empty() || !open.to.empty()) groups.push_back(open);
    open = {};
    return fits;
  };
  for (size_t axis = 0; axis < from.size(); ++axis) {
    if (!contains(kept, static_cast<int64_t>(axis))) {
      open.from.push_back(static_cast<int64_t>(axis));
      continue;
    }
    if (!close(from[axis]) || next >= to.size() || to[next] != from[axis]) return {};
    groups.push_back({{static_cast<int64_t>(axis)}, {to[next++]}});
  }
  if (!close(-1) || next != to.size()) return {};
  return groups;
}

// What the operand of a broadcast becomes where the result is reshaped: its extents, and as `from` the axes of the
// result that its own are. Each group is one that the operand has, or that it repeats. `first`: by axis of the result,
// where its group begins.
std::optional<Regrouped> before_broadcast(const Regrouping& groups, const std::vector<int64_t>& first,
                                          const std::vector<int64_t>& from, const std::vector<int64_t>& own,
                                          const std::vector<int64_t>& dims) {
  Regrouped result;
  for (const Regrouped& group : groups) {
    std::vector<int64_t> there, extents;
    bool whole = true, repeated = true;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (!contains(group.from, dims[i])) continue;
      there.push_back(static_cast<int64_t>(i));
      whole = whole && own[i] == from[dims[i]];
      repeated = repeated && own[i] == 1;
    }
    for (const int64_t axis : group.from) extents.push_back(from[axis]);
    const int64_t at = first[group.from[0]];
    if (extents == group.to) {
      for (const int64_t i : there) {
        result.to.push_back(own[i]);
        result.from.push_back(at + dims[i] - group.from[0]);
      }
    } else if (whole && there.size() == group.from.size()) {
      for (size_t i = 0; i < group.to.size(); ++i) result.from.push_back(at + static_cast<int64_t>(i));
      result.to.insert(result.to.end(), group.to.begin(), group.to.end());
    } else if (!repeated) {
      return std::nullopt;
    }
  }
  return result;
}

// The same of a transpose, of whose operand each group of axes must be one, too.
std::optional<Regrouped> before_transpose(const Regrouping& groups, const std::vector<int64_t>& dims) {
  std::vector<const Regrouped*> by_axis(dims.size(), nullptr);  // of the operand: the group that its axis begins
  for (const Regrouped& group : groups) {
    for (size_t i = 1; i < group.from.size(); ++i) {
      if (dims[group.from[i]] != dims[group.from[0]] + static_cast<int64_t>(i)) return std::nullopt;
    }
    by_axis[dims[group.from[0]]] = &group;
  }
  Regrouped result;
  std::vector<int64_t> first(dims.size(), -1);
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (by_axis[axis] == nullptr) continue;
    first[axis] = std::ssize(result.to);
    result.to.insert(result.to.end(), by_axis[axis]->to.begin(), by_axis[axis]->to.end());
  }
  for (const Regrouped& group : groups) {
    for (size_t i = 0; i < group.to.size(); ++i) {
      result.from.push_back(first[dims[group.from[0]]] + static_cast<int64_t>(i));
    }
  }
  return result;
}

}  // namespace

ValueId Builder::partition_of(ValueId x, ValueId starts, ValueId extents, const Nest& nest) {
  if (nest.components == 1) return partition(x, starts, extents, nest.axis, nest.most);
  return add_op(OpKind::kPartition, {x, starts, extents}, nest, value(x, "partition").dtype, {}, "");
}

ValueId Builder::nested_full(ValueId x, const std::vector<int64_t>& to, const std::vector<int64_t>& dims,
                             const Value& like) {
  std::vector<int64_t> flat = to;
  std::vector<int> missing = ragged_axes(like);
  const std::vector<Axis> own = fusion_.values[x].axes;
  std::erase_if(missing, [&](int axis) {
    const auto at = static_cast<size_t>(std::find(dims.begin(), dims.end(), axis) - dims.begin());
    return at < std::min(dims.size(), own.size()) && own[at].extents >= 0;
  });
  for (int axis : missing) flat[axis] = 1;
  ValueId result = broadcast(x, flat, dims);
  for (int axis : missing) result = stretch(result, like.axes[axis].extents, {axis, to[axis], like.axes[axis].by});
  return result;
}

// `does` as in "its axis 1 cannot be padded".
void Builder::check_dense(ValueId x, int64_t axis, const char* op, const char* does, const char* instead) const {
  const Value& nested = fusion_.values[x];
  for (const int ragged : ragged_axes(nested)) {
    const bool is_by = contains(nested.axes[ragged].by, axis);
    JF_REQUIRE(axis != ragged && !is_by, "[", op, "] ", nested.name, ", ", print_type(fusion_, nested),
               ", is nested: ", is_by ? "its axis " : "its ragged axis ", axis,
               is_by ? " says which component an element is of and cannot be " : " cannot be ", does, "; ", instead);
  }
}

// The same partition of another operand.
ValueId Builder::partition_like(const Op& op, ValueId operand, const Nest& nest) {
  if (nest.also.empty()) return partition_of(operand, op.inputs[1], op.inputs[2], nest);
  std::vector<ValueId> inputs = op.inputs;
  inputs[0] = operand;
  return add_op(OpKind::kPartition, std::move(inputs), nest, value(operand, "partition").dtype, {}, "");
}
std::vector<int64_t> Builder::rows_of(const Op& partition) const {
  const Nest& nest = std::get<Nest>(partition.attribute);
  const std::vector<Axis>& axes = fusion_.values[partition.inputs[0]].axes;
  std::vector<int64_t> rows = {axes[nest.axis].extent};
  for (size_t i = 0; i < nest.also.size(); i += 2) rows.push_back(axes[nest.also[i]].extent);
  return rows;
}

// The operands of a partition or a stretch where it has some elements only.
ValueId Builder::slice_of_nested(const Op& op, const Slice& where, const std::vector<int64_t>& counts) {
  const Value nested = fusion_.values[op.output];
  const auto is_whole = [&](int64_t axis) { return where.keeps(axis, counts[axis], nested.axes[axis].extent); };
  const std::vector<int64_t> kept = kept_axes(nested);
  if (std::all_of(kept.begin(), kept.end(), is_whole)) return slice_of_dense(op, where, counts);
  // What says where components are is sliced along their axes; rows that are left out in front, counted off.
  const auto span_of = [&](int64_t axis, ValueId starts, int64_t rows) {
    const Axis& ragged = nested.axes[axis];
    const int64_t first = where.starts[axis];
    Slice components;
    std::vector<int64_t> component_counts;
    for (int64_t dim : ragged.by) {
      components.starts.push_back(where.starts[dim]);
      components.strides.push_back(where.strides[dim]);
      component_counts.push_back(counts[dim]);
    }
    auto part_of = [&](ValueId id, int64_t most, OpKind moved) {
      const ValueId part = sliced(id, components, component_counts);
      if (first == 0) return part;
      auto full_of = [&](int64_t number) { return full(DType::kS32, component_counts, {number}); };
      const ValueId within = pointwise(OpKind::kClamp, std::array{full_of(0), part, full_of(most)});
      return pointwise(moved, std::array{within, full_of(first)});
    };
    return std::array{starts < 0 ? -1 : part_of(starts, rows, OpKind::kAdd),
                      part_of(ragged.extents, ragged.extent, OpKind::kSub)};
  };
  for (const int axis : ragged_axes(nested)) {
    if (counts[axis] > 1 && where.strides[axis] != 1) return -1;
  }
  Nest nest = std::get<Nest>(op.attribute);
  Slice inner = where;
  std::vector<int64_t> inner_counts = counts;
  if (op.kind == OpKind::kStretch) {
    const ValueId extents = span_of(nest.axis, -1, 0)[1];
    inner.starts[nest.axis] = 0;
    inner.strides[nest.axis] = 1;
    inner_counts[nest.axis] = 1;
    nest.most = counts[nest.axis];
    return stretch(sliced(op.inputs[0], inner, inner_counts), extents, nest);
  }
  const std::vector<Cut> cuts = cuts_of(nest);
  const std::vector<int64_t> rows = rows_of(op);
  std::vector<ValueId> inputs = {-1};
  for (size_t i = 0; i < cuts.size(); ++i) {
    const auto span = span_of(cuts[i].ragged, op.inputs[1 + 2 * i], rows[i]);
    inputs.insert(inputs.end(), span.begin(), span.end());
    (i == 0 ? nest.most : nest.also[2 * i - 1]) = counts[cuts[i].ragged];
  }
  to_operand(cuts, std::vector<int64_t>(rows.size(), 0), inner.starts);
  to_operand(cuts, std::vector<int64_t>(rows.size(), 1), inner.strides);
  to_operand(cuts, rows, inner_counts);
  inputs[0] = sliced(op.inputs[0], inner, inner_counts);
  if (nest.also.empty()) return partition_of(inputs[0], inputs[1], inputs[2], nest);
  return add_op(OpKind::kPartition, std::move(inputs), nest, nested.dtype, {}, "");
}

// The same along dense axes alone.
ValueId Builder::slice_of_dense(const Op& op, const Slice& where, const std::vector<int64_t>& counts) {
  const Nest nest = std::get<Nest>(op.attribute);
  Slice inner = where;
  std::vector<int64_t> inner_counts = counts;
  if (op.kind == OpKind::kStretch) {
    inner_counts[nest.axis] = 1;
    return stretch(sliced(op.inputs[0], inner, inner_counts), op.inputs[1], nest);
  }
  const std::vector<Cut> cuts = cuts_of(nest);
  const std::vector<int64_t> rows = rows_of(op);
  to_operand(cuts, std::vector<int64_t>(rows.size(), 0), inner.starts);
  to_operand(cuts, std::vector<int64_t>(rows.size(), 1), inner.strides);
  to_operand(cuts, rows, inner_counts);
  return partition_like(op, sliced(op.inputs[0], inner, inner_counts), nest);
}

// What a fold or a scan of dense axes is of, sliced along the others.
ValueId Builder::slice_of_fold(const Op& op, const Slice& where, const std::vector<int64_t>& counts) {
  const auto* reduce = std::get_if<Reduce>(&op.attribute);
  const std::vector<int64_t> from = shape(fusion_.values[op.inputs[0]]);
  if (reduce == nullptr) {
    const Scan& scan = std::get<Scan>(op.attribute);
    if (!where.keeps(scan.axis, counts[scan.axis], from[scan.axis])) return -1;
    return add_op(op.kind, all_sliced(op.inputs, where, counts), scan, DType::kPred, {}, op.label);
  }
  if (reduce->parts > 0) return -1;
  Slice inner;
  std::vector<int64_t> inner_counts;
  size_t next = 0;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    const bool gone = contains(reduce->dims, static_cast<int64_t>(axis));
    inner.starts.push_back(gone ? 0 : where.starts[next]);
    inner.strides.push_back(gone ? 1 : where.strides[next]);
    inner_counts.push_back(gone ? from[axis] : counts[next]);
    next += !gone;
  }
  return add_op(op.kind, {sliced(op.inputs[0], inner, inner_counts)}, *reduce, DType::kPred, {}, op.label);
}

// As spread, of a partition or a stretch, along dense axes.
ValueId Builder::spread_nested(const Op& op, const ir::Pad& where, const std::vector<int64_t>& to) {
  const Nest nest = std::get<Nest>(op.attribute);
  ir::Pad inner = where;
  std::vector<int64_t> inner_shape = to;
  if (op.kind == OpKind::kStretch) {
    inner.counts[nest.axis] = inner_shape[nest.axis] = 1;
    return stretch(spread(op.inputs[0], inner, inner_shape), op.inputs[1], nest);
  }
  const std::vector<Cut> cuts = cuts_of(nest);
  const std::vector<int64_t> rows = rows_of(op), zeros(rows.size(), 0);
  to_operand(cuts, zeros, inner.from.starts);
  to_operand(cuts, std::vector<int64_t>(rows.size(), 1), inner.from.strides);
  to_operand(cuts, zeros, inner.low);
  to_operand(cuts, rows, inner.counts);
  to_operand(cuts, rows, inner_shape);
  return partition_like(op, spread(op.inputs[0], inner, inner_shape), nest);
}

// As spread, of a fold or a scan of a nested value's dense axes.
ValueId Builder::spread_fold(const Op& op, const ir::Pad& where, const std::vector<int64_t>& to) {
  const std::vector<int64_t> from = shape(fusion_.values[op.inputs[0]]);
  const auto* reduce = std::get_if<Reduce>(&op.attribute);
  if (reduce == nullptr) {
    const int64_t axis = std::get<Scan>(op.attribute).axis;
    if (to[axis] != from[axis] || !where.from.keeps(axis, where.counts[axis], from[axis])) return -1;
    std::vector<ValueId> inputs;
    for (ValueId id : op.inputs) inputs.push_back(spread(id, where, to));
    return add_op(op.kind, std::move(inputs), op.attribute, DType::kPred, {}, op.label);
  }
  if (reduce->parts > 0) return -1;
  ir::Pad inner;
  std::vector<int64_t> inner_shape;
  size_t next = 0;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    const bool gone = contains(reduce->dims, static_cast<int64_t>(axis));
    inner.from.starts.push_back(gone ? 0 : where.from.starts[next]);
    inner.from.strides.push_back(gone ? 1 : where.from.strides[next]);
    inner.low.push_back(gone ? 0 : where.low[next]);
    inner.counts.push_back(gone ? from[axis] : where.counts[next]);
    inner_shape.push_back(gone ? from[axis] : to[next]);
    next += !gone;
  }
  return add_op(op.kind, {spread(op.inputs[0], inner, inner_shape)}, *reduce, DType::kPred, {}, op.label);
}

ValueId Builder::pad_nested(ValueId x, const ir::Pad& where, const std::vector<int64_t>& to, ValueId padding) {
  const Value like = fusion_.values[x];
  bool nothing = false, pads = false;
  for (size_t i = 0; i < to.size(); ++i) {
    if (where.counts[i] == to[i] && to[i] == like.axes[i].extent && where.from.starts[i] == 0) continue;
    check_dense(x, static_cast<int64_t>(i), "pad", "padded", "pad before partition, or give it greater extents");
    nothing = nothing || where.counts[i] == 0;
    pads = pads || where.counts[i] != to[i];
  }
  const ValueId outside = nested_full(padding, to, {}, like);
  if (nothing) return outside;
  const ValueId inside = spread(x, where, to);
  ValueId which = -1;
  auto also = [&](ValueId more) { which = which < 0 ? more : pointwise(OpKind::kAnd, std::array{which, more}); };
  for (size_t i = 0; i < to.size(); ++i) {
    const int64_t low = where.low[i], end = low + where.counts[i];
    if (low > 0) also(pointwise(OpKind::kNot, std::array{is_below_nested(to, static_cast<int64_t>(i), low, like)}));
    if (end < to[i]) also(is_below_nested(to, static_cast<int64_t>(i), end, like));
  }
  return pads ? pointwise(OpKind::kSelect, std::array{which, inside, outside}) : inside;
}

ValueId Builder::is_below_nested(const std::vector<int64_t>& to, int64_t axis, int64_t bound, const Value& like) {
  return nested_full(is_below({to[axis]}, 0, bound), to, {axis}, like);
}

ValueId Builder::concat_nested(std::span<const ValueId> values, int64_t axis, const std::vector<int64_t>& whole) {
  for (ValueId id : values) {
    const Value& part = fusion_.values[id];
    JF_REQUIRE(ragged_axis(part) >= 0, "[concat] ", part.name, ", ", print_type(part),
               ", is dense, and others are nested; broadcast it like those");
    check_dense(id, axis, "concat", "extended", "put arrays side by side before partition, or combine and then do");
  }
  check_equal(fusion_, "concat", values);
  const Value like = fusion_.values[values.back()];
  ValueId result = -1;
  int64_t end = whole[axis];
  for (size_t i = values.size(); i-- > 0;) {
    const std::vector<int64_t> own = shape(fusion_.values[values[i]]);
    ir::Pad where{{std::vector<int64_t>(own.size(), 0), std::vector<int64_t>(own.size(), 1)},
                  std::vector<int64_t>(own.size(), 0),
                  own};
    where.low[axis] = end - own[axis];
    const ValueId inside = spread(values[i], where, whole);
    result = result < 0
                 ? inside
                 : pointwise(OpKind::kSelect, std::array{is_below_nested(whole, axis, end, like), inside, result});
    end -= own[axis];
  }
  return result;
}

// -1 where some op on the way to the arrays mixes the axes.
ValueId Builder::reshaped_nested(ValueId x, const std::vector<int64_t>& to) {
  std::pair<ValueId, std::vector<int64_t>> key(x, to);
  if (const auto found = reshapes_.find(key); found != reshapes_.end()) return found->second;
  const Deeper deeper(*this);
  JF_REQUIRE(!too_deep(), "[reshape] ", fusion_.values[x].name, " is nested, and more than ", kMaxDepth,
             " ops lie between it and what is reshaped; reshape earlier, or combine it first");
  const ValueId result = reshaped_anew(x, to);
  reshapes_.emplace(std::move(key), result);
  return result;
}

ValueId Builder::reshaped_anew(ValueId x, const std::vector<int64_t>& to) {
  const Value nested = fusion_.values[x];
  const std::vector<int64_t> from = shape(nested);
  const Regrouping groups = regrouping(from, to, kept_axes(nested));
  if (groups.empty()) return -1;
  if (from == to) return x;
  std::vector<int64_t> first(from.size(), -1);  // by axis: where its group begins
  int64_t begin = 0;
  for (const Regrouped& group : groups) {
    for (int64_t axis : group.from) first[axis] = begin;
    begin += static_cast<int64_t>(group.to.size());
  }
  const Op op = *definition(x);
  const DType dtype = nested.dtype;
  if (info(op.kind).op_class == OpClass::kPointwise) {
    std::vector<ValueId> inputs;
    for (ValueId id : op.inputs) {
      inputs.push_back(reshaped_nested(id, to));
      if (inputs.back() < 0) return -1;
    }
    return add_op(op.kind, std::move(inputs), op.attribute, dtype, {}, op.label);
  }
  if (op.kind == OpKind::kPartition || op.kind == OpKind::kStretch) {
    Nest nest = std::get<Nest>(op.attribute);
    std::vector<int64_t> dense = to;
    if (op.kind == OpKind::kStretch) {
      nest.axis = first[nest.axis];
      dense[nest.axis] = 1;
      for (int64_t& by : nest.by) by = first[by];
      const bool plain = ragged_axis(fusion_.values[op.inputs[0]]) < 0;
      const ValueId operand = plain ? reshape(op.inputs[0], dense) : reshaped_nested(op.inputs[0], dense);
      return operand < 0 ? -1 : stretch(operand, op.inputs[1], nest);
    }
    std::vector<Cut> cuts = cuts_of(nest);
    for (size_t i = 0; i < cuts.size(); ++i) {
      auto& [component, at] = cuts[i];
      if (first[at] - first[component] != at - component) return -1;
      component = first[component];
      at = first[at];
      (i == 0 ? nest.axis : nest.also[2 * i - 2]) = component - static_cast<int64_t>(i);
    }
    to_operand(cuts, rows_of(op), dense);
    return partition_like(op, reshape(op.inputs[0], dense), nest);
  }
  if (op.kind != OpKind::kBroadcast && op.kind != OpKind::kTranspose) return -1;
  const std::vector<int64_t>& dims = std::get<Dims>(op.attribute).dims;
  const bool broadcasts = op.kind == OpKind::kBroadcast;
  const std::optional<Regrouped> of_operand =
      broadcasts ? before_broadcast(groups, first, from, shape(fusion_.values[op.inputs[0]]), dims)
                 : before_transpose(groups, dims);
  const ValueId operand = of_operand ? reshaped_nested(op.inputs[0], of_operand->to) : -1;
  if (operand < 0) return -1;
  return broadcasts ? broadcast(operand, to, of_operand->from) : transpose(operand, of_operand->from);
}

ValueId Builder::reshape_nested(ValueId x, const std::vector<int64_t>& to) {
  const Value nested = fusion_.values[x];
  JF_REQUIRE(product(shape(nested)) == product(to), "[reshape] ", print_type(fusion_, nested), " has ",
             product(shape(nested)), " elements, the new shape ", product(to));
  // Axes of extent 1 where there were none come last.
  std::vector<int64_t> core, dims;
  int64_t next = 0;
  for (const Regrouped& group : regrouping(shape(nested), to, kept_axes(nested))) {
    for (int64_t extent : group.to) {
      if (!group.from.empty()) core.push_back(extent);
      if (!group.from.empty()) dims.push_back(next);
      ++next;
    }
  }
  const ValueId result = product(to) == 0 || core.empty() ? -1 : reshaped_nested(x, core);
  JF_REQUIRE(result >= 0, "[reshape] ", nested.name, ", ", print_type(fusion_, nested),
             ", is nested: its ragged axis and its component stay, and others must be neighbours where arrays are "
             "partitioned; reshape before partition, or combine it first");
  return broadcast(result, to, dims);
}

ValueId Builder::select(ValueId x, int64_t component) {
  const Value nested = value(x, "select");
  const std::vector<int> axes = ragged_axes(nested);
  JF_REQUIRE(!axes.empty(), "[select] expected a nested value, got ", print_type(nested), "; slice a dense one");
  const int64_t by = nested.axes[axes[0]].by.back();
  for (const int axis : axes) {
    JF_REQUIRE(nested.axes[axis].by.back() == by, "[select] ", nested.name, ", ", print_type(fusion_, nested),
               ", has several ragged axes, each with components of its own; slice the axis of those it is one of");
  }
  const int64_t components = nested.axes[by].extent;
  JF_REQUIRE(component >= 0 && component < components, "[select] expected a component from 0 to ", components - 1,
             " of ", print_type(fusion_, nested), ", got ", component);
  std::vector<int64_t> counts = shape(nested);
  Slice where{std::vector<int64_t>(counts.size(), 0), std::vector<int64_t>(counts.size(), 1)};
  where.starts[by] = component;
  counts[by] = 1;
  const ValueId one = sliced(x, where, counts);
  std::vector<ValueId> starts;
  std::vector<int64_t> rows;
  for (const int axis : axes) {
    const ValueId extents = fusion_.values[one].axes[axis].extents;
    starts.push_back(full(DType::kS32, shape(fusion_.values[extents]), {int64_t{0}}));
    rows.push_back(counts[axis]);
  }
  return combine(one, starts, rows);
}

}  // namespace jf::ir
