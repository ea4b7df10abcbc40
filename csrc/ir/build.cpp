#include "ir/build.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "base/lists.h"
#include "ir/infer.h"
#include "ir/text.h"
#include "ir/unused.h"
#include "ir/verify.h"

namespace jf::ir {
namespace {

// What makes two ops equal: everything but the label and the name of the result.
std::string key(OpKind kind, const std::vector<ValueId>& inputs, const Attribute& attribute, const Value& type) {
  std::string text = cat(static_cast<int>(kind), ' ', print_type(type));
  for (ValueId id : inputs) text += cat(' ', id);
  return text + print_attribute(attribute);
}

// Columns side by side of which each is computed by itself.
constexpr size_t kMaxColumns = 16;

// Results are called t<id>, so nothing else may be.
bool is_result_name(const std::string& text) {
  return text.size() > 1 && text[0] == 't' && std::isdigit(static_cast<unsigned char>(text[1]));
}

template <class T>
std::vector<T> to_vector(std::span<const T> items) {
  return {items.begin(), items.end()};
}

}  // namespace

Builder::Builder(std::string name, size_t max_ops) : max_ops_(max_ops) {
  fusion_.name = identifier(name);
  if (is_result_name(fusion_.name)) fusion_.name = "fusion_" + fusion_.name;
}

void Builder::require_unfinished(const char* function) const {
  JF_REQUIRE(!finished_, "[", function, "] the builder is finished and has no values any more; begin with another one");
}

const Value& Builder::value(ValueId id, const char* function) const {
  require_unfinished(function);
  JF_REQUIRE(id >= 0 && id < static_cast<ValueId>(fusion_.values.size()), "[", function, "] unknown value ", id);
  return fusion_.values[id];
}

ValueId Builder::add_value(DType dtype, std::vector<Axis> axes) {
  const auto id = static_cast<ValueId>(fusion_.values.size());
  fusion_.values.push_back({cat("t", id), dtype, std::move(axes)});
  defined_by_.resize(fusion_.values.size(), -1);
  return id;
}

void Builder::push(Op op) {
  JF_REQUIRE(!is_full(), "[", info(op.kind).name, "] ", fusion_.name, " takes more than ", max_ops_,
             " ops (each slice of a computed value computes it again); cut the function into several");
  defined_by_[op.output] = static_cast<int64_t>(fusion_.ops.size());
  fusion_.ops.push_back(std::move(op));
}

ValueId Builder::add_op(OpKind kind, std::vector<ValueId> inputs, Attribute attribute, DType dtype,
                        std::vector<Axis> axes, const std::string& label) {
  require_unfinished(info(kind).name.data());
  for (ValueId id : inputs) value(id, info(kind).name.data());
  Value type = infer(fusion_, kind, inputs, attribute, {"", dtype, std::move(axes)});
  const std::string op_key = key(kind, inputs, attribute, type);
  if (auto found = known_.find(op_key); found != known_.end()) return found->second;
  const ValueId id = add_value(type.dtype, std::move(type.axes));
  push({kind, std::move(inputs), id, std::move(attribute), clean_label(label)});
  known_.emplace(op_key, id);
  return id;
}

ValueId Builder::input(const std::string& name, DType dtype, std::span<const int64_t> shape) {
  require_unfinished("input");
  for (int64_t extent : shape) JF_REQUIRE(extent >= 0, "[input] axis extents must not be negative, got ", extent);
  const ValueId id = add_value(dtype, axes_of(shape));
  // A number keeps equal names apart.
  std::string unique = identifier(name);
  auto taken = [&](const std::string& text) {
    return text == fusion_.name || is_result_name(text) ||
           std::any_of(fusion_.inputs.begin(), fusion_.inputs.end(),
                       [&](ValueId other) { return fusion_.values[other].name == text; });
  };
  if (taken(unique)) unique = cat(unique, "_", id);
  while (taken(unique)) unique = "in_" + unique;
  fusion_.values[id].name = unique;
  fusion_.inputs.push_back(id);
  return id;
}

ValueId Builder::constant(DType dtype, Constant value) { return add_op(OpKind::kConstant, {}, value, dtype, {}, ""); }

ValueId Builder::iota(DType dtype, std::span<const int64_t> shape, int64_t dim) {
  return add_op(OpKind::kIota, {}, Dims{{dim}}, dtype, axes_of(shape), "");
}

ValueId Builder::pointwise(OpKind kind, std::span<const ValueId> inputs, const std::string& label) {
  const OpInfo& op = info(kind);
  JF_REQUIRE(op.op_class == OpClass::kPointwise && op.result != ResultRule::kStated, "[pointwise] '", op.name,
             "' is not a pointwise op whose result follows from its operands");
  if (const ValueId sum = kind == OpKind::kAdd ? sum_of_parts(inputs) : -1; sum >= 0) return sum;
  const ValueId columns = by_columns(kind, to_vector(inputs), DType::kPred, label);
  return columns >= 0 ? columns : add_op(kind, to_vector(inputs), {}, DType::kPred, {}, label);
}

ValueId Builder::convert(ValueId x, DType dtype, const std::string& label) {
  if (value(x, "convert").dtype == dtype) return x;
  if (std::vector<ValueId> parts = this->parts(x); !parts.empty()) {
    const int64_t axis = std::get<Dims>(definition(x)->attribute).dims[0];
    for (ValueId& part : parts) part = convert(part, dtype, label);
    return concat(parts, axis);
  }
  return add_op(OpKind::kConvert, {x}, {}, dtype, {}, label);
}

ValueId Builder::bitcast(ValueId x, DType dtype, const std::string& label) {
  if (value(x, "bitcast").dtype == dtype) return x;
  if (const ValueId columns = by_columns(OpKind::kBitcast, {x}, dtype, label); columns >= 0) return columns;
  return add_op(OpKind::kBitcast, {x}, {}, dtype, {}, label);
}

ValueId Builder::broadcast(ValueId x, std::span<const int64_t> new_shape, std::span<const int64_t> dims) {
  const std::vector<int64_t> old_shape = shape(value(x, "broadcast"));
  const Dims placed{{dims.begin(), dims.end()}};
  if (std::equal(old_shape.begin(), old_shape.end(), new_shape.begin(), new_shape.end())) {
    infer(fusion_, OpKind::kBroadcast, {x}, placed, {"", DType::kPred, axes_of(new_shape)});
    return x;
  }
  if (const Op* op = definition(x); op != nullptr && op->kind == OpKind::kSqueeze) {
    // Axes of extent 1 that went and come back were there.
    const ir::Value& whole = fusion_.values[op->inputs[0]];
    std::vector<int64_t> kept;
    for (int64_t axis = 0; axis < static_cast<int64_t>(whole.axes.size()); ++axis) {
      if (!contains(std::get<Dims>(op->attribute).dims, axis)) kept.push_back(axis);
    }
    const bool same = ragged_axis(whole) < 0 && kept == placed.dims && shape(whole) == to_vector(new_shape);
    if (same) return op->inputs[0];
  }
  return add_op(OpKind::kBroadcast, {x}, placed, DType::kPred, axes_of(new_shape), "");
}

ValueId Builder::transpose(ValueId x, std::span<const int64_t> permutation) {
  bool identity = permutation.size() == value(x, "transpose").axes.size();
  for (size_t i = 0; identity && i < permutation.size(); ++i) identity = permutation[i] == static_cast<int64_t>(i);
  if (identity) return x;
  return add_op(OpKind::kTranspose, {x}, Dims{{permutation.begin(), permutation.end()}}, DType::kPred, {}, "");
}

ValueId Builder::squeeze(ValueId x, std::span<const int64_t> dims) {
  value(x, "squeeze");
  if (dims.empty()) return x;
  if (const Op* op = definition(x);
      op != nullptr && op->kind == OpKind::kBroadcast && ragged_axis(fusion_.values[x]) < 0) {
    infer(fusion_, OpKind::kSqueeze, {x}, Dims{{dims.begin(), dims.end()}}, {"", DType::kPred, {}});
    // Axes that were only added are not.
    const std::vector<int64_t> whole = shape(fusion_.values[x]), &placed = std::get<Dims>(op->attribute).dims;
    const auto goes = [&](int64_t axis) { return std::count(dims.begin(), dims.end(), axis) > 0; };
    if (std::none_of(placed.begin(), placed.end(), goes)) {
      std::vector<int64_t> kept, places;
      for (int64_t axis = 0; axis < static_cast<int64_t>(whole.size()); ++axis) {
        if (std::count(placed.begin(), placed.end(), axis) > 0) places.push_back(static_cast<int64_t>(kept.size()));
        if (!goes(axis)) kept.push_back(whole[axis]);
      }
      return broadcast(op->inputs[0], kept, places);
    }
  }
  return add_op(OpKind::kSqueeze, {x}, Dims{{dims.begin(), dims.end()}}, DType::kPred, {}, "");
}

ValueId Builder::reshape(ValueId x, std::span<const int64_t> to) {
  const DType dtype = value(x, "reshape").dtype;
  if (ragged_axis(fusion_.values[x]) >= 0) return reshape_nested(x, to_vector(to));
  infer(fusion_, OpKind::kReshape, {x}, {}, {"", dtype, axes_of(to)});
  if (elements(fusion_.values[x]) == 0) return broadcast(constant(dtype, zero_of(dtype)), to, {});
  if (const Op* op = definition(x); op != nullptr && op->kind == OpKind::kReshape) return reshape(op->inputs[0], to);
  if (const Op* op = definition(x); op != nullptr && op->kind == OpKind::kBroadcast) {
    const ValueId repeated = op->inputs[0];
    if (fusion_.values[repeated].axes.empty()) return broadcast(repeated, to, {});
  }
  // Axes of extent 1 go, and come.
  const std::vector<int64_t> from = shape(fusion_.values[x]);
  std::vector<int64_t> ones, core, others;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == 1) ones.push_back(static_cast<int64_t>(i));
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] == 1) continue;
    core.push_back(to[i]);
    others.push_back(static_cast<int64_t>(i));
  }
  if (std::equal(from.begin(), from.end(), to.begin(), to.end())) return x;
  const ValueId plain = squeeze(x, ones);
  const bool same = shape(fusion_.values[plain]) == core;
  return broadcast(same ? plain : add_op(OpKind::kReshape, {plain}, {}, dtype, axes_of(core), ""), to, others);
}

const Op* Builder::definition(ValueId id) const {
  return defined_by_[id] < 0 ? nullptr : &fusion_.ops[defined_by_[id]];
}

const Op* Builder::inner_definition(ValueId id) const {
  return too_deep() || stored_.count(id) > 0 ? nullptr : definition(id);
}

std::vector<ValueId> Builder::parts(ValueId id) const {
  std::vector<ValueId> result;
  const Op* op = definition(id);
  if (op == nullptr || op->kind != OpKind::kConcat) return result;
  for (ValueId placed : op->inputs) result.push_back(definition(placed)->inputs[0]);
  return result;
}

std::vector<ValueId> Builder::columns(ValueId id, int64_t axis, size_t count) {
  const std::vector<int64_t> whole = shape(fusion_.values[id]);
  std::vector<ValueId> result;
  if (axis >= static_cast<int64_t>(whole.size()) || whole[axis] != static_cast<int64_t>(count)) return result;
  if (fusion_.values[id].axes[axis].kind == AxisKind::kBroadcast) {
    Slice first{std::vector<int64_t>(whole.size(), 0), std::vector<int64_t>(whole.size(), 1)};
    std::vector<int64_t> counts = whole;
    counts[axis] = 1;
    return std::vector<ValueId>(count, sliced(id, first, counts));
  }
  const Op* op = definition(id);
  const bool along = op != nullptr && op->kind == OpKind::kConcat && std::get<Dims>(op->attribute).dims[0] == axis;
  if (along && op->inputs.size() == count) return parts(id);
  return result;
}

ValueId Builder::by_columns(OpKind kind, const std::vector<ValueId>& inputs, DType dtype, const std::string& label) {
  const Op* first = nullptr;
  for (ValueId id : inputs) {
    const Op* op = value(id, "pointwise").axes.empty() ? nullptr : definition(id);
    if (op != nullptr && op->kind == OpKind::kConcat) first = op;
  }
  if (first == nullptr || first->inputs.size() > kMaxColumns) return -1;
  const int64_t axis = std::get<Dims>(first->attribute).dims[0];
  const size_t count = first->inputs.size();
  std::vector<std::vector<ValueId>> operands;
  for (ValueId id : inputs) {
    operands.push_back(columns(id, axis, count));
    if (operands.back().empty()) return -1;
  }
  std::vector<ValueId> results;
  for (size_t i = 0; i < count; ++i) {
    std::vector<ValueId> at;
    for (const std::vector<ValueId>& operand : operands) at.push_back(operand[i]);
    results.push_back(add_op(kind, std::move(at), {}, dtype, {}, label));
  }
  return concat(results, axis);
}

ValueId Builder::concat(std::span<const ValueId> values, int64_t axis) {
  JF_REQUIRE(!values.empty(), "[concat] expected one value or more, got none");
  std::vector<int64_t> whole = shape(value(values[0], "concat"));
  JF_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(whole.size()), "[concat] expected an axis below rank ",
             whole.size(), ", got ", axis);
  if (values.size() == 1) return values[0];
  whole[axis] = 0;
  std::vector<ValueId> filled;
  for (ValueId id : values) {
    const Value& x = value(id, "concat");
    JF_REQUIRE(x.axes.size() == whole.size(), "[concat] ranks differ: ", print_type(fusion_.values[values[0]]), " and ",
               print_type(x));
    for (size_t a = 0; a < whole.size(); ++a) {
      JF_REQUIRE(static_cast<int64_t>(a) == axis || x.axes[a].extent == whole[a], "[concat] extents differ along axis ",
                 a, ": ", print_type(fusion_.values[values[0]]), " and ", print_type(x));
    }
    whole[axis] += x.axes[axis].extent;
    if (x.axes[axis].extent > 0) filled.push_back(id);
  }
  // What has no column is no part: parts are counted as columns.
  if (filled.size() != values.size()) return concat(filled.empty() ? values.first(1) : filled, axis);
  const bool nested =
      std::any_of(values.begin(), values.end(), [&](ValueId id) { return ragged_axis(fusion_.values[id]) >= 0; });
  if (nested) return concat_nested(values, axis, whole);
  std::vector<ValueId> placed;
  std::vector<int64_t> starts(whole.size(), 0);
  for (ValueId id : values) {
    // Each in memory of its own: no equal op stands for it.
    const Place place{starts, whole};
    Value type = infer(fusion_, OpKind::kPlace, {id}, place, {"", DType::kPred, {}});
    placed.push_back(add_value(type.dtype, std::move(type.axes)));
    push({OpKind::kPlace, {id}, placed.back(), place, ""});
    starts[axis] += fusion_.values[id].axes[axis].extent;
  }
  return add_op(OpKind::kConcat, std::move(placed), Dims{{axis}}, DType::kPred, {}, "");
}

ValueId Builder::slice(ValueId x, const Slice& where, std::span<const int64_t> counts) {
  const DType dtype = value(x, "slice").dtype;
  Slice plain = where;
  // A single element is no distance from the next one.
  for (size_t i = 0; i < std::min(counts.size(), plain.strides.size()); ++i) {
    if (counts[i] == 1 && plain.strides[i] != 0) plain.strides[i] = 1;
  }
  // Nested values are never sliced themselves, but what they are computed from is.
  Fusion dense;
  dense.values = {{fusion_.values[x].name, dtype, axes_of(shape(fusion_.values[x]))}};
  infer(dense, OpKind::kSlice, {0}, plain, {"", dtype, axes_of(counts)});
  return sliced(x, plain, to_vector(counts));
}

// Where one operand holds all of it; -1 elsewhere.
ValueId Builder::slice_of_concat(const Op& op, const Slice& where, const std::vector<int64_t>& counts) {
  const int64_t axis = std::get<Dims>(op.attribute).dims[0];
  for (ValueId placed : op.inputs) {
    const int64_t begin = std::get<Place>(definition(placed)->attribute).starts[axis];
    const int64_t size = fusion_.values[placed].axes[axis].extent;
    const int64_t first = where.starts[axis] - begin, last = first + (counts[axis] - 1) * where.strides[axis];
    if (std::min(first, last) < 0 || std::max(first, last) >= size) continue;
    Slice inner = where;
    inner.starts[axis] = first;
    return sliced(definition(placed)->inputs[0], inner, counts);
  }
  return -1;
}

std::vector<ValueId> Builder::all_sliced(const std::vector<ValueId>& values, const Slice& where,
                                         const std::vector<int64_t>& counts) {
  std::vector<ValueId> result;
  for (ValueId id : values) result.push_back(sliced(id, where, counts));
  return result;
}

ValueId Builder::sliced(ValueId x, const Slice& where, const std::vector<int64_t>& counts) {
  const bool from_start =
      std::all_of(where.starts.begin(), where.starts.end(), [](int64_t start) { return start == 0; });
  if (from_start && shape(fusion_.values[x]) == counts) return x;
  if (contains(counts, int64_t{0})) return full(fusion_.values[x].dtype, counts, zero_of(fusion_.values[x].dtype));
  std::vector<int64_t> key = where.starts;
  key.insert(key.end(), where.strides.begin(), where.strides.end());
  key.insert(key.end(), counts.begin(), counts.end());
  if (const auto found = slices_.find({x, key}); found != slices_.end()) return found->second;
  // Whether all elements are there, along one axis backwards.
  const auto is_backwards = [&](int64_t axis) {
    return shape(fusion_.values[x]) == counts && where.strides[axis] == -1 &&
           std::count(where.starts.begin(), where.starts.end(), 0) + 1 == std::ssize(counts);
  };
  const Deeper deeper(*this);
  const Op* defining = inner_definition(x);
  ValueId result = -1;
  if (defining != nullptr) {
    const Op op = *defining;  // which adding ops may move
    const DType dtype = fusion_.values[x].dtype;
    if (info(op.kind).op_class == OpClass::kPointwise) {
      std::vector<ValueId> inputs;
      for (ValueId id : op.inputs) inputs.push_back(sliced(id, where, counts));
      result = add_op(op.kind, std::move(inputs), op.attribute, dtype, {}, op.label);
    } else if (op.kind == OpKind::kBroadcast) {
      const std::vector<int64_t>& dims = std::get<Dims>(op.attribute).dims;
      const std::vector<int64_t> from = shape(fusion_.values[op.inputs[0]]), to = shape(fusion_.values[x]);
      Slice inner;
      std::vector<int64_t> inner_counts;
      for (size_t i = 0; i < from.size(); ++i) {
        const bool repeats = from[i] != to[dims[i]];
        inner.starts.push_back(repeats ? 0 : where.starts[dims[i]]);
        inner.strides.push_back(repeats ? 1 : where.strides[dims[i]]);
        inner_counts.push_back(repeats ? from[i] : counts[dims[i]]);
      }
      result = broadcast(sliced(op.inputs[0], inner, inner_counts), counts, dims);
    } else if (op.kind == OpKind::kTranspose) {
      const std::vector<int64_t>& dims = std::get<Dims>(op.attribute).dims;
      Slice inner = where;
      std::vector<int64_t> inner_counts = counts;
      for (size_t i = 0; i < dims.size(); ++i) {
        inner.starts[dims[i]] = where.starts[i];
        inner.strides[dims[i]] = where.strides[i];
        inner_counts[dims[i]] = counts[i];
      }
      result = transpose(sliced(op.inputs[0], inner, inner_counts), dims);
    } else if (op.kind == OpKind::kConcat) {
      result = slice_of_concat(op, where, counts);
    } else if (op.kind == OpKind::kIota) {
      const int64_t dim = std::get<Dims>(op.attribute).dims[0];
      result = convert(counting(counts, dim, where.starts[dim], where.strides[dim]), dtype);
    } else if (op.kind == OpKind::kPartition || op.kind == OpKind::kStretch) {
      result = slice_of_nested(op, where, counts);
    } else if (op.kind == OpKind::kSlice) {
      Slice inner = std::get<Slice>(op.attribute);
      for (size_t i = 0; i < counts.size(); ++i) {
        inner.starts[i] += where.starts[i] * inner.strides[i];
        inner.strides[i] *= where.strides[i];
      }
      result = sliced(op.inputs[0], inner, counts);
    } else if (const auto* scan = std::get_if<Scan>(&op.attribute); scan != nullptr && is_backwards(scan->axis)) {
      Scan from_end = *scan;
      from_end.reverse = !scan->reverse;
      result = add_op(op.kind, all_sliced(op.inputs, where, counts), from_end, DType::kPred, {}, op.label);
    } else if (ragged_axis(fusion_.values[x]) >= 0 &&
               (info(op.kind).op_class == OpClass::kReduce || info(op.kind).op_class == OpClass::kScan)) {
      result = slice_of_fold(op, where, counts);
    }
  }
  if (defining != nullptr && result < 0) result = slice_of_view(x, where, counts);
  if (result < 0) {
    result = add_op(OpKind::kSlice, {x}, where, fusion_.values[x].dtype, axes_of(counts), "");
  }
  slices_.emplace(std::make_pair(x, std::move(key)), result);
  note_origin(result, x, where);
  return result;
}

ValueId Builder::reduce(OpKind kind, ValueId x, std::span<const int64_t> dims, int64_t parts, const std::string& label,
                        bool in_turn) {
  const OpInfo& op = info(kind);
  JF_REQUIRE(op.op_class == OpClass::kReduce, "[reduce] '", op.name, "' is not a reduction");
  const std::vector<Axis>& axes = value(x, op.name.data()).axes;
  if (dims.empty() && parts == 0) return x;
  const Reduce attribute{to_vector(dims), parts, in_turn};
  const Value type = infer(fusion_, kind, {x}, attribute, {"", DType::kPred, {}});
  const bool folds = std::any_of(dims.begin(), dims.end(),
                                 [&](int64_t dim) { return axes[dim].extent != 1 || axes[dim].extents >= 0; });
  if (!folds) return squeeze(x, parts > 0 ? dims.subspan(1) : dims);
  const bool of_nothing = parts == 0 && ragged_axis(fusion_.values[x]) < 0 &&
                          std::any_of(dims.begin(), dims.end(), [&](int64_t dim) { return axes[dim].extent == 0; });
  if (of_nothing) return full(type.dtype, shape(type), identity_of(kind, type.dtype));
  if (const Op* concat = definition(x); dims.size() == 1 && parts == 0 && concat != nullptr) {
    const size_t count = concat->kind == OpKind::kConcat ? concat->inputs.size() : 0;
    if (count > 0 && count <= kMaxColumns && axes[dims[0]].extent == static_cast<int64_t>(count) &&
        std::get<Dims>(concat->attribute).dims[0] == dims[0]) {
      ValueId result = -1;
      for (ValueId column : this->parts(x)) {
        const ValueId next = squeeze(column, dims);
        result = result < 0 ? next : add_op(fold_of(kind), {result, next}, {}, DType::kPred, {}, label);
      }
      return result;
    }
  }
  return add_op(kind, {x}, attribute, DType::kPred, {}, label);
}

ValueId Builder::scan(OpKind kind, ValueId x, int64_t axis, bool reverse, const std::string& label, ValueId factors) {
  JF_REQUIRE(info(kind).op_class == OpClass::kScan, "[scan] '", info(kind).name, "' is not a scan");
  value(x, info(kind).name.data());
  std::vector<ValueId> inputs = {x};
  if (factors >= 0) inputs.push_back(factors);
  const Scan attribute{axis, reverse};
  infer(fusion_, kind, inputs, attribute, {"", DType::kPred, {}});
  if (fusion_.values[x].axes[axis].extent <= 1) {
    const Value& only = fusion_.values[x];
    return is_recurrence(kind) ? full(only.dtype, shape(only), zero_of(only.dtype)) : x;
  }
  return add_op(kind, std::move(inputs), attribute, DType::kPred, {}, label);
}

ValueId Builder::grouped_matmul(ValueId lhs, ValueId rhs, ValueId extents, std::span<const ValueId> others,
                                Grouped attribute, DType dtype, const std::string& label) {
  std::vector<ValueId> inputs = {lhs, rhs, extents};
  inputs.insert(inputs.end(), others.begin(), others.end());
  return add_op(OpKind::kGroupedMatmul, std::move(inputs), attribute, dtype, {}, label);
}

void Builder::output(ValueId x) {
  value(x, "output");
  fusion_.outputs.push_back(x);
}

void Builder::set_name(ValueId x, const std::string& name) {
  value(x, "set_name");
  const std::string text = identifier(name);
  const bool taken = text == fusion_.name ||
                     std::any_of(fusion_.inputs.begin(), fusion_.inputs.end(),
                                 [&](ValueId other) { return other == x || fusion_.values[other].name == text; }) ||
                     names_.count(x) > 0 || !taken_.insert(text).second;
  if (taken) return;
  names_.emplace(x, text);
  const Op* op = definition(x);
  if (op == nullptr || op->kind != OpKind::kConcat || is_result_name(text)) return;
  const std::vector<ValueId> stored = op->inputs;  // one by one
  for (size_t i = 0; i < stored.size(); ++i) set_name(stored[i], cat(text, "_", i));
}

Fusion Builder::take_fusion() {
  Fusion made;
  std::swap(made, fusion_);
  names_.clear();
  taken_.clear();
  defined_by_.clear();
  known_.clear();
  slices_.clear();
  spreads_.clear();
  reshapes_.clear();
  padded_.clear();
  takes_.clear();
  partitions_.clear();
  origin_.clear();
  stored_.clear();
  return made;
}

Fusion Builder::finish() {
  require_unfinished("finish");
  join_read_concats();
  ValueId first = 0;  // behind names that are numbers already
  for (const Op& op : fusion_.ops) {
    std::string& name = fusion_.values[op.output].name;
    const auto given = names_.find(op.output);
    name = given == names_.end() ? "" : given->second;
    if (is_result_name(name)) first = std::max(first, 1 + std::atoi(name.c_str() + 1));
  }
  Fusion result = without_unused(take_fusion());
  finished_ = true;
  for (const Op& op : result.ops) {
    std::string& name = result.values[op.output].name;
    if (name.empty()) name = cat("t", first + op.output);
  }
  verify(result);
  return result;
}

}  // namespace jf::ir
