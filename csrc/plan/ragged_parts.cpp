#include "plan/ragged_parts.h"

#include <algorithm>
#include <compare>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "base/lists.h"
#include "ir/append.h"
#include "ir/verify.h"
#include "plan/components_apart.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::Value;
using ir::ValueId;

// Pieces of work that keep a device busy where few rows exist, and the columns of each.
constexpr int64_t kWantedParts = 256, kPartColumns = 256;
// Rows of a part: enough that what is stored between the stages is small against what is read, and few enough that the
// last part to begin is done soon. Of short rows a part has so many elements.
// Parts whose rows a block keeps from fold to fold are shorter: its threads take fewer registers.
constexpr int64_t kFewestPartRows = 32, kRowsOfRaggedPart = 128, kRowsKept = 64, kElementsOfPart = 1 << 10;
// A component has a part that is not full. Where components could have fewer rows each, they are not cut.
constexpr int64_t kRowsOfComponent = 8;
// Between a largest value and the shift that follows from it.
constexpr size_t kFewOps = 16;
// Places in the array stay 32-bit numbers.
constexpr int64_t kMostPartRows = int64_t{1} << 30;
// Loops over all parts may have as many rows in each as all have: fewer iterations than a kernel's loops may have.
constexpr int64_t kMostIterations = 20'000'000'000'000;

class RaggedRewriter {
 public:
  explicit RaggedRewriter(const Fusion& whole)
      : whole_(whole), renamed_(whole.values.size(), -1), defined_by_(whole.values.size(), nullptr) {
    result_.name = whole.name;
    names_.insert(whole.name);
    for (const Value& value : whole.values) names_.insert(value.name);
    several_.resize(whole.values.size(), false);
    for (const Op& op : whole.ops) {
      defined_by_[op.output] = &op;
      const Op* summed = op.kind == OpKind::kReduceSum ? defined_by_[op.inputs[0]] : nullptr;
      keeps_ = keeps_ || (summed != nullptr && summed->kind == OpKind::kExp &&
                          ir::ragged_axis(whole.values[summed->output]) >= 0);
      several_[op.output] = ir::ragged_axes(whole.values[op.output]).size() > 1;
      for (ValueId id : op.inputs) {
        several_[op.output] = several_[op.output] || (several_[id] && ir::ragged_axis(whole.values[id]) >= 0);
      }
    }
  }

  Fusion run() && {
    for (ValueId id : whole_.inputs) {
      result_.values.push_back(whole_.values[id]);
      result_.inputs.push_back(renamed_[id] = static_cast<ValueId>(result_.values.size()) - 1);
    }
    for (const Op& op : whole_.ops) {
      if (ir::ragged_axis(whole_.values[op.output]) >= 0) continue;  // made where it is folded or combined
      const int axis = op.inputs.empty() ? -1 : ir::ragged_axis(whole_.values[op.inputs[0]]);
      renamed_[op.output] = axis < 0 ? copied(op) : leave(op);
    }
    for (ValueId id : whole_.outputs) result_.outputs.push_back(renamed_[id]);
    ir::verify(result_);
    return std::move(result_);
  }

 private:
  ValueId add(OpKind kind, std::vector<ValueId> inputs, ir::Attribute attribute, const Value& stated,
              const std::string& label = "") {
    return ir::append(result_, kind, std::move(inputs), std::move(attribute), stated, label);
  }
  Value fresh(const std::string& of, const char* what, DType dtype, const std::vector<int64_t>& shape = {}) {
    std::string name = cat(of, "_", what);
    for (int copy = 2; !names_.insert(name).second; ++copy) name = cat(of, "_", what, "_", copy);
    return {name, dtype, ir::axes_of(shape)};
  }
  const std::string& name(ValueId id) const { return whole_.values[id].name; }

  ValueId copied(const Op& op) {
    std::vector<ValueId> inputs;
    for (ValueId id : op.inputs) inputs.push_back(renamed_[id]);
    return add(op.kind, std::move(inputs), op.attribute, whole_.values[op.output], op.label);
  }

  // How the components that belong to extents are cut.
  struct Cutting {
    ValueId extents = -1;
    int64_t rows = 0;    // of a part, at least; 0 where components stay whole
    int64_t parts = 0;   // of all components of an outer index
    int64_t most = 0;    // rows of a component
    bool exact = false;  // parts have no more rows than that, wherever components are
    auto operator<=>(const Cutting&) const = default;
  };

  // How the components of what an op folds or combines should be cut.
  Cutting cutting(const Op& op) const {
    const Value& from = whole_.values[op.inputs[0]];
    const int axis = ir::ragged_axis(from);
    const ir::Axis& ragged = from.axes[axis];
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    int64_t columns = 1;
    for (size_t a = 0; a < from.axes.size(); ++a) {
      const auto dim = static_cast<int64_t>(a);
      const bool is_folded = reduce != nullptr && std::binary_search(reduce->dims.begin(), reduce->dims.end(), dim);
      const bool indexes = contains(ragged.by, dim);
      if (static_cast<int>(a) != axis && !is_folded && !indexes) columns *= std::max<int64_t>(from.axes[a].extent, 1);
    }
    const std::vector<ir::Axis>& of = whole_.values[ragged.extents].axes;
    const int64_t components = of.back().extent,
                  all = std::max<int64_t>(ir::elements(whole_.values[ragged.extents]), 1);
    const int64_t rows = ragged.extent, pieces = divide_up(columns, kPartColumns) *
                                                 std::max<int64_t>(all / std::max<int64_t>(components, 1), 1);
    if (components == 0 || components * kRowsOfComponent > rows || rows > kMostPartRows) {
      return {ragged.extents, 0, 0, rows};
    }
    const int64_t enough = std::max(keeps_ ? kRowsKept : kRowsOfRaggedPart, kElementsOfPart / columns),
                  most = kMostIterations / std::max<int64_t>(ir::elements(from) / components, 1) - components;
    const int64_t wanted =
        std::min(most, std::max(rows / enough, std::min(divide_up(kWantedParts, pieces), rows / kFewestPartRows)));
    if (wanted < 2) {
      return {ragged.extents, 0, 0, rows};
    }
    const int64_t of_part = divide_up(rows, wanted);
    return {ragged.extents, of_part, divide_up(rows, of_part) + components, rows,
            share_no_rows(defined_by_, whole_, ragged.extents, rows)};
  }
  static int64_t component_axis(const Value& value) { return value.axes[ir::ragged_axis(value)].by.back(); }

  // Components of values with several ragged axes stay whole.
  ValueId whole_nested(ValueId id) {
    if (ir::ragged_axis(whole_.values[id]) < 0) return renamed_[id];
    if (const auto found = nested_.find({id, {}}); found != nested_.end()) return found->second;
    const Op& op = *defined_by_[id];
    const ValueId made =
        whole_copied(op, fresh(name(id), "rows", whole_.values[id].dtype, ir::shape(whole_.values[id])));
    nested_.emplace(std::pair(id, Cutting{}), made);
    return made;
  }
  ValueId whole_copied(const Op& op, const Value& stated) {
    std::vector<ValueId> inputs;
    for (ValueId id : op.inputs) inputs.push_back(whole_nested(id));
    return add(op.kind, std::move(inputs), op.attribute, stated, op.label);
  }

  ValueId leave(const Op& op) {
    const Cutting cut = cutting(op);
    const ValueId from = op.inputs[0];
    const Value& value = whole_.values[op.output];
    if (op.kind == OpKind::kCombine && ir::elements(whole_.values[from]) == 0) {
      const ValueId zero = add(OpKind::kConstant, {}, ir::zero_of(value.dtype), fresh(value.name, "zero", value.dtype));
      return add(OpKind::kBroadcast, {zero}, ir::Dims{}, value);
    }
    if (several_[op.inputs[0]]) return whole_copied(op, value);
    if (const auto* combine = std::get_if<ir::Combine>(&op.attribute)) {
      const ValueId starts = starts_of_parts(op.inputs[1], cut, combine->rows);
      return add(op.kind, {nested(from, cut), starts}, *combine, value, op.label);
    }
    const auto& reduce = std::get<ir::Reduce>(op.attribute);
    if (cut.rows == 0) return add(op.kind, {nested(from, cut)}, reduce, value, op.label);
    if (const std::optional<Shifted> shifted = shifted_by_largest(op)) return sum_of_powers(op, *shifted, cut);
    // Sums and products of low precision stay in compute_dtype between the stages.
    const bool rounds = op.kind == OpKind::kReduceSum || op.kind == OpKind::kReduceProd;
    const DType dtype = rounds ? compute_dtype(value.dtype) : value.dtype;
    ValueId operand = nested(from, cut);
    if (dtype != value.dtype) operand = add(OpKind::kConvert, {operand}, {}, fresh(value.name, "wide", dtype));
    // First each part by itself; what folds components, too, does so with the parts.
    const std::vector<int64_t> by = result_.values[operand].axes[ir::ragged_axis(result_.values[operand])].by;
    ir::Reduce first{{}, 0}, second{{}, 0};
    for (int64_t dim : reduce.dims) {
      const bool indexes = contains(by, dim);
      (indexes ? second : first).dims.push_back(dim);
    }
    const auto moved = [&](int64_t dim) {
      return dim - std::count_if(first.dims.begin(), first.dims.end(), [&](int64_t gone) { return gone < dim; });
    };
    for (int64_t& dim : second.dims) dim = moved(dim);
    const int64_t component = moved(by.back());
    ValueId partial = add(op.kind, {operand}, first, fresh(value.name, "parts", dtype), op.label);
    partials_.emplace(op.output, partial);
    if (!contains(second.dims, component)) {
      const Parts& parts = parts_of(cut);
      const int64_t outer = static_cast<int64_t>(by.size()) - 1;
      ValueId rows = partial;
      std::vector<int64_t> order, back;
      // Extents of several axes are for those in front.
      if (outer > 0) {
        for (int64_t dim : by) order.push_back(moved(dim));
        const auto rank = static_cast<int64_t>(result_.values[partial].axes.size());
        for (int64_t dim = 0; dim < rank; ++dim) {
          if (!contains(order, dim)) order.push_back(dim);
        }
        if (!std::is_sorted(order.begin(), order.end())) {
          rows = add(OpKind::kTranspose, {partial}, ir::Dims{order}, fresh(value.name, "parts_in_order", dtype));
          for (int64_t dim = 0; dim < rank; ++dim) {
            const auto at = std::find(order.begin(), order.end(), dim) - order.begin();
            back.push_back(at > outer ? at + 1 : at);
            if (at == outer) back.push_back(at + 1);
          }
        }
      }
      const int64_t axis = outer > 0 ? outer : component;
      Value stated = fresh(value.name, "parts_of_components", dtype);
      partial = add(OpKind::kPartition, {rows, parts.first, parts.counts}, ir::Nest{axis, cut.parts}, stated);
      if (!back.empty()) {
        partial = add(OpKind::kTranspose, {partial}, ir::Dims{back}, fresh(value.name, "parts_in_place", dtype));
      }
      for (int64_t& dim : second.dims) dim += dim > component;
      second.dims.push_back(component + 1);
      std::sort(second.dims.begin(), second.dims.end());
    }
    if (dtype == value.dtype) return add(op.kind, {partial}, second, value, op.label);
    const ValueId all = add(op.kind, {partial}, second, fresh(value.name, "all", dtype), op.label);
    return add(OpKind::kConvert, {all}, {}, value);
  }

  // sum(exp(x - t)) over rows, where t follows from max(x) over the same rows.
  struct Shifted {
    const Op *sum, *power, *difference, *stretch;
    ValueId largest;
  };
  std::optional<Shifted> shifted_by_largest(const Op& op) const {
    const auto is = [](const Op* made, OpKind kind) { return made != nullptr && made->kind == kind; };
    const DType dtype = whole_.values[op.output].dtype;
    // Of low precision the sums of parts would be rounded.
    if (op.kind != OpKind::kReduceSum || dtype != compute_dtype(dtype)) return std::nullopt;
    const Op* power = defined_by_[op.inputs[0]];
    const Op* difference = is(power, OpKind::kExp) ? defined_by_[power->inputs[0]] : nullptr;
    const Op* stretch = is(difference, OpKind::kSub) ? defined_by_[difference->inputs[1]] : nullptr;
    if (!is(stretch, OpKind::kStretch)) return std::nullopt;
    // Where extents have several axes, they stand in front.
    const auto& nest = std::get<ir::Nest>(stretch->attribute);
    const auto& reduce = std::get<ir::Reduce>(op.attribute);
    std::vector<int64_t> leading(nest.by.size());
    std::iota(leading.begin(), leading.end(), 0);
    if (nest.by.size() > 1 && nest.by != leading) return std::nullopt;
    if (reduce.dims != std::vector<int64_t>{nest.axis} || nest.axis != nest.by.back() + 1) return std::nullopt;
    std::vector<ValueId> todo = {stretch->inputs[0]};
    for (size_t i = 0; i < todo.size() && i < kFewOps; ++i) {
      const Op* made = defined_by_[todo[i]];
      if (made == nullptr) continue;
      if (is(made, OpKind::kReduceMax) && made->inputs[0] == difference->inputs[0] &&
          std::get<ir::Reduce>(made->attribute).dims == reduce.dims && partials_.contains(made->output)) {
        return Shifted{&op, power, difference, stretch, made->output};
      }
      const ir::OpClass op_class = ir::info(made->kind).op_class;
      if (op_class != ir::OpClass::kPointwise && made->kind != OpKind::kBroadcast) continue;
      todo.insert(todo.end(), made->inputs.begin(), made->inputs.end());
    }
    return std::nullopt;
  }
  // With a shift of its own each part is summed as soon as its largest is known: rows are read from memory once.
  ValueId sum_of_powers(const Op& op, const Shifted& shifted, const Cutting& cut) {
    const Value& value = whole_.values[op.output];
    const auto& nest = std::get<ir::Nest>(shifted.stretch->attribute);
    const Parts& parts = parts_of(cut);
    const int64_t component = nest.by.back();
    const ValueId largest = partials_.at(shifted.largest), rows = nested(shifted.difference->inputs[0], cut);
    const auto made = [&](OpKind kind, std::vector<ValueId> inputs, ir::Attribute attribute = {}) {
      const DType dtype = kind == OpKind::kIsFinite ? DType::kPred : value.dtype;
      return add(kind, std::move(inputs), std::move(attribute), fresh(value.name, "shifted", dtype));
    };
    const std::vector<int64_t> shape = ir::shape(result_.values[largest]);
    const ValueId zero = add(OpKind::kConstant, {}, ir::zero_of(value.dtype), fresh(value.name, "zero", value.dtype));
    const ValueId zeros = add(OpKind::kBroadcast, {zero}, ir::Dims{}, fresh(value.name, "zeros", value.dtype, shape));
    // Where nothing is finite, so is the power.
    const ValueId own = made(OpKind::kSelect, {made(OpKind::kIsFinite, {largest}), largest, zeros});
    std::vector<int64_t> dims, one = shape;
    for (int64_t dim = 0; dim < std::ssize(shape); ++dim) dims.push_back(dim > component ? dim + 1 : dim);
    one.insert(one.begin() + nest.axis, 1);
    const ValueId column = add(OpKind::kBroadcast, {own}, ir::Dims{dims}, fresh(value.name, "own", value.dtype, one));
    ir::Nest of_part = nest;
    if (cut.exact) of_part.most = cut.rows;
    const ValueId in_rows = made(OpKind::kStretch, {column, parts.extents}, of_part);
    const ValueId power = made(OpKind::kExp, {made(OpKind::kSub, {rows, in_rows})});
    const ir::Reduce fold{{nest.axis}, 0};
    const ValueId partial = add(OpKind::kReduceSum, {power}, fold, fresh(value.name, "parts", value.dtype), op.label);
    // Then all of them by the common one.
    const auto of_components = [&](ValueId id) {
      return made(OpKind::kPartition, {id, parts.first, parts.counts}, ir::Nest{component, cut.parts});
    };
    const ValueId common = made(OpKind::kStretch, {renamed_[shifted.stretch->inputs[0]], parts.counts},
                                ir::Nest{nest.axis, cut.parts, nest.by});
    const ValueId scale = made(OpKind::kExp, {made(OpKind::kSub, {of_components(largest), common})});
    return add(OpKind::kReduceSum, {made(OpKind::kMul, {of_components(partial), scale})}, fold, value, op.label);
  }

  // A nested value whose components are parts.
  ValueId nested(ValueId id, const Cutting& cut) {
    const auto key = std::pair(id, cut);
    if (const auto found = nested_.find(key); found != nested_.end()) return found->second;
    const ValueId made = nested_anew(id, cut);
    nested_.emplace(key, made);
    return made;
  }
  ValueId nested_anew(ValueId id, const Cutting& cut) {
    const Op& op = *defined_by_[id];
    const Value& value = whole_.values[id];
    Value stated = fresh(name(id), cut.rows > 0 ? "in_parts" : "rows", value.dtype);
    for (const ir::Axis& axis : value.axes) stated.axes.push_back({axis.extent});
    if (cut.rows > 0) stated.axes[component_axis(value)].extent = cut.parts;
    const auto of_rows = [&](ir::Nest nest) {
      if (cut.exact) nest.most = cut.rows;
      return nest;
    };
    if (cut.exact) stated.axes[ir::ragged_axis(value)].extent = cut.rows;
    const ValueId extents = cut.rows > 0 ? parts_of(cut).extents : renamed_[cut.extents];
    if (op.kind == OpKind::kPartition) {
      const auto& nest = std::get<ir::Nest>(op.attribute);
      const int64_t rows = whole_.values[op.inputs[0]].axes[nest.axis].extent;
      const ValueId starts = starts_of_parts(op.inputs[1], cut, rows);
      return add(op.kind, {renamed_[op.inputs[0]], starts, extents}, of_rows(nest), stated, op.label);
    }
    if (op.kind == OpKind::kStretch) {
      const ValueId dense = cut.rows > 0 ? dense_of_parts(op.inputs[0], std::get<ir::Nest>(op.attribute).by, cut)
                                         : renamed_[op.inputs[0]];
      return add(op.kind, {dense, extents}, of_rows(std::get<ir::Nest>(op.attribute)), stated, op.label);
    }
    std::vector<ValueId> inputs;
    for (ValueId input : op.inputs) inputs.push_back(nested(input, cut));
    return add(op.kind, std::move(inputs), op.attribute, stated, op.label);
  }

  // Per-component values [.., components, ..] for each part: that of its component. Axes `by` are those of extents.
  ValueId dense_of_parts(ValueId id, const std::vector<int64_t>& by, const Cutting& cut) {
    const auto key = std::tuple(id, by, cut);
    if (const auto found = dense_.find(key); found != dense_.end()) return found->second;
    const int64_t component = by.back();
    std::vector<int64_t> shape = ir::shape(whole_.values[id]);
    shape[component] = cut.parts;
    const Value stated = fresh(name(id), "of_parts", whole_.values[id].dtype, shape);
    std::vector<int64_t> from(shape.size());
    std::iota(from.begin(), from.end(), 0);
    ValueId source = renamed_[id], made = -1;
    if (const Op* op = defined_by_[id]; op != nullptr && op->kind == OpKind::kBroadcast) {
      // What it repeats has fewer elements.
      const std::vector<int64_t>& dims = std::get<ir::Dims>(op->attribute).dims;
      const std::vector<ir::Axis>& axes = whole_.values[op->inputs[0]].axes;
      const auto at = std::find(dims.begin(), dims.end(), component) - dims.begin();
      const bool varies = at < std::ssize(dims) && axes[at].extent == whole_.values[id].axes[component].extent;
      source = renamed_[op->inputs[0]];
      if (!varies) {
        made = add(OpKind::kBroadcast, {source}, op->attribute, stated);
      } else if (by.size() == 1) {
        made = add(OpKind::kBroadcast, {dense_of_parts(op->inputs[0], {at}, cut)}, op->attribute, stated);
      } else {
        from = dims;
        for (size_t i = 0; i < from.size(); ++i) from[i] = axes[i].extent == 1 ? -1 : from[i];
        from[at] = component;
      }
    }
    if (made < 0) made = taken(source, from, by, cut, stated);
    dense_.emplace(key, made);
    return made;
  }
  // The elements at each part's component. Axis i of the value goes along axis from[i] of the result, -1 for none; axes
  // `by` of the result are those of extents.
  ValueId taken(ValueId id, std::vector<int64_t> from, const std::vector<int64_t>& by, const Cutting& cut,
                const Value& stated) {
    const auto at = std::find(from.begin(), from.end(), by.back()) - from.begin();
    from[at] = -1;
    std::vector<int64_t> order(by.size()), dims = by;
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return by[a] < by[b]; });
    std::sort(dims.begin(), dims.end());
    ValueId index = parts_of(cut).component;
    if (dims != by) {
      index = add(OpKind::kTranspose, {index}, ir::Dims{order}, fresh(whole_.name, "indices", DType::kS32));
    }
    const std::vector<int64_t> shape = ir::shape(stated);
    if (shape != ir::shape(result_.values[index])) {
      index = add(OpKind::kBroadcast, {index}, ir::Dims{dims}, fresh(whole_.name, "indices", DType::kS32, shape));
    }
    const std::vector<int64_t> none(from.size(), 0), ones(from.size(), 1);
    const int64_t last = result_.values[id].axes[at].extent - 1;
    return add(OpKind::kTake, {id, index}, ir::Take{{at}, {last}, from, none, ones}, stated);
  }

  // Integers, one for each component or for each part.
  ValueId full(int64_t value, const std::vector<int64_t>& shape, DType dtype = DType::kS32) {
    const ValueId number = add(OpKind::kConstant, {}, ir::Constant{value}, fresh(whole_.name, "number", dtype));
    return shape.empty() ? number
                         : add(OpKind::kBroadcast, {number}, ir::Dims{}, fresh(whole_.name, "numbers", dtype, shape));
  }
  ValueId compute(OpKind kind, std::vector<ValueId> inputs, ir::Attribute attribute = {}, DType dtype = DType::kS32) {
    return add(kind, std::move(inputs), std::move(attribute), fresh(whole_.name, "index", dtype));
  }
  ValueId clamped(ValueId id, int64_t high) {
    const std::vector<int64_t> shape = ir::shape(result_.values[id]);
    return compute(OpKind::kClamp, {full(0, shape), id, full(high, shape)});
  }
  // Integers of components for each part.
  ValueId of_parts(ValueId id, ValueId component) {
    const auto rank = static_cast<int64_t>(result_.values[id].axes.size());
    std::vector<int64_t> from(rank);
    std::iota(from.begin(), from.end(), 0);
    from.back() = -1;
    const std::vector<int64_t> none(rank, 0), ones(rank, 1);
    const Value stated = fresh(whole_.name, "of_part", DType::kS32, ir::shape(result_.values[component]));
    const int64_t last = result_.values[id].axes.back().extent - 1;
    return add(OpKind::kTake, {id, component}, ir::Take{{rank - 1}, {last}, from, none, ones}, stated);
  }

  // By component: where its parts are and how many it has. By part: its component, where it begins in it, and its rows.
  struct Parts {
    ValueId first, counts, component, offset, extents;
  };
  // Where components share rows there can be more of these than the array has: then parts are longer.
  ValueId length_of_parts(ValueId count, const Cutting& cut, const std::vector<int64_t>& outer) {
    const DType wide = DType::kS64;
    const int64_t least = cut.parts - ir::shape(result_.values[count]).back(), last = std::ssize(outer);
    const ValueId total =
        compute(OpKind::kReduceSum, {compute(OpKind::kConvert, {count}, {}, wide)}, ir::Reduce{{last}, 0}, wide);
    const ValueId even = compute(
        OpKind::kDiv,
        {compute(OpKind::kAdd, {total, full(least - 1, outer, wide)}, {}, wide), full(least, outer, wide)}, {}, wide);
    return compute(
        OpKind::kConvert,
        {compute(OpKind::kClamp, {full(cut.rows, outer, wide), even, full(cut.most, outer, wide)}, {}, wide)});
  }
  const Parts& parts_of(const Cutting& cut) {
    if (const auto found = parts_.find(cut); found != parts_.end()) return found->second;
    const ValueId count = clamped(renamed_[cut.extents], cut.most);
    const std::vector<int64_t> components = ir::shape(result_.values[count]);
    const auto last = static_cast<int64_t>(components.size()) - 1;
    std::vector<int64_t> outer(components.begin(), components.end() - 1), parts = outer, along(last);
    parts.push_back(cut.parts);
    std::iota(along.begin(), along.end(), 0);
    const ValueId length = cut.exact ? full(cut.rows, outer) : length_of_parts(count, cut, outer);
    const auto everywhere = [&](const std::vector<int64_t>& shape) {
      return add(OpKind::kBroadcast, {length}, ir::Dims{along}, fresh(whole_.name, "numbers", DType::kS32, shape));
    };
    const ValueId of_component = everywhere(components), of_part = everywhere(parts);
    const ValueId filled = compute(OpKind::kAdd, {count, compute(OpKind::kSub, {of_component, full(1, components)})});
    const ValueId counts = compute(OpKind::kDiv, {filled, of_component});
    const ValueId ends = compute(OpKind::kScanSum, {counts}, ir::Scan{last});
    const ValueId first = compute(OpKind::kSub, {ends, counts});
    // From the last one on: the caches then hold the first rows, where a kernel that reads the rows again begins.
    const ValueId place = add(OpKind::kIota, {}, ir::Dims{{last}}, fresh(whole_.name, "part", DType::kS32, parts));
    const ValueId number = compute(OpKind::kSub, {full(cut.parts - 1, parts), place});
    const ValueId component = compute(OpKind::kSearch, {ends, number}, ir::Search{false, along});
    const ValueId exists = compute(OpKind::kLt, {component, full(components.back(), parts)}, {}, DType::kPred);
    const auto where = [&](ValueId id) { return compute(OpKind::kSelect, {exists, id, full(0, parts)}); };
    const ValueId before = where(compute(OpKind::kSub, {number, of_parts(first, component)}));
    const ValueId offset = compute(OpKind::kMul, {before, of_part});
    const ValueId rest = compute(OpKind::kSub, {of_parts(count, component), offset});
    const ValueId extents = where(compute(OpKind::kClamp, {full(0, parts), rest, of_part}));
    const ValueId place_of_last = compute(OpKind::kSub, {full(cut.parts, components), ends});
    return parts_.emplace(cut, Parts{place_of_last, counts, component, offset, extents}).first->second;
  }
  ValueId starts_of_parts(ValueId starts, const Cutting& cut, int64_t rows) {
    if (cut.rows == 0) return renamed_[starts];
    const auto key = std::tuple(starts, cut, rows);
    if (const auto found = starts_.find(key); found != starts_.end()) return found->second;
    const Parts& parts = parts_of(cut);
    const ValueId first = of_parts(clamped(renamed_[starts], rows), parts.component);
    return starts_.emplace(key, compute(OpKind::kAdd, {first, parts.offset})).first->second;
  }

  const Fusion& whole_;
  Fusion result_;
  std::vector<ValueId> renamed_;  // by value of the whole, for dense ones
  std::vector<const Op*> defined_by_;
  bool keeps_ = false;         // sums of powers follow largest values
  std::vector<bool> several_;  // by value: whether it comes from one with several ragged axes, in its kernel
  std::set<std::string> names_;
  std::map<std::pair<ValueId, Cutting>, ValueId> nested_;
  std::map<ValueId, ValueId> partials_;  // by what is folded: the folds of its parts
  std::map<std::tuple<ValueId, std::vector<int64_t>, Cutting>, ValueId> dense_;
  std::map<Cutting, Parts> parts_;
  std::map<std::tuple<ValueId, Cutting, int64_t>, ValueId> starts_;
};

}  // namespace

bool has_nested(const Fusion& fusion) {
  return std::any_of(fusion.values.begin(), fusion.values.end(),
                     [](const Value& value) { return ir::ragged_axis(value) >= 0; });
}

Fusion in_ragged_parts(const Fusion& fusion) { return has_nested(fusion) ? RaggedRewriter(fusion).run() : fusion; }

}  // namespace jf::plan
