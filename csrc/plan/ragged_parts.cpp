#include "plan/ragged_parts.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/integers.h"
#include "ir/verify.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::Value;
using ir::ValueId;

// Pieces of work that keep a device busy where one component has all rows, and the columns of each.
constexpr int64_t kWanted = 256, kColumns = 256;
// Rows of a part where one component has all of them; rows for each part of each component, so that what is stored
// between the stages is small against what is read.
constexpr int64_t kFewestRows = 32, kRowsOfPart = 8;
// Places in the array stay 32-bit numbers.
constexpr int64_t kMostRows = int64_t{1} << 30;

class Rewriter {
 public:
  explicit Rewriter(const Fusion& whole)
      : whole_(whole), renamed_(whole.values.size(), -1), defined_by_(whole.values.size(), nullptr) {
    result_.name = whole.name;
    names_.insert(whole.name);
    for (const Value& value : whole.values) names_.insert(value.name);
    for (const Op& op : whole.ops) defined_by_[op.output] = &op;
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
  // Of a nested value: how its axes look once the parts stand behind the component; 0 parts for none.
  struct Cut {
    const ir::Axis& ragged;
    int64_t parts;
    int64_t position;  // of the new axis

    int64_t operator()(int64_t axis) const { return parts > 0 && axis >= position ? axis + 1 : axis; }
    std::vector<int64_t> operator()(std::vector<int64_t> axes) const {
      for (int64_t& axis : axes) axis = (*this)(axis);
      return axes;
    }
  };
  Cut cut(ValueId id, int64_t parts) const {
    const Value& value = whole_.values[id];
    const ir::Axis& ragged = value.axes[ir::ragged_axis(value)];
    return {ragged, parts, ragged.by.back() + 1};
  }

  ValueId add(OpKind kind, std::vector<ValueId> inputs, ir::Attribute attribute, const Value& stated,
              const std::string& label = "") {
    Value value = ir::infer(result_, kind, inputs, attribute, stated);
    value.name = stated.name;
    const auto id = static_cast<ValueId>(result_.values.size());
    result_.values.push_back(std::move(value));
    result_.ops.push_back({kind, std::move(inputs), id, std::move(attribute), label});
    return id;
  }
  Value fresh(const std::string& of, const char* what, DType dtype, const std::vector<int64_t>& shape = {}) {
    std::string name = cat(of, "_", what);
    for (int copy = 2; !names_.insert(name).second; ++copy) name = cat(of, "_", what, "_", copy);
    Value value{name, dtype, {}};
    for (int64_t extent : shape) value.axes.push_back({extent});
    return value;
  }
  const std::string& name(ValueId id) const { return whole_.values[id].name; }

  ValueId copied(const Op& op) {
    std::vector<ValueId> inputs;
    for (ValueId id : op.inputs) inputs.push_back(renamed_[id]);
    return add(op.kind, std::move(inputs), op.attribute, whole_.values[op.output], op.label);
  }

  // How many parts each component of what an op folds or combines should have; 0 for none.
  int64_t wanted_parts(const Op& op) const {
    const Value& from = whole_.values[op.inputs[0]];
    const int axis = ir::ragged_axis(from);
    const ir::Axis& ragged = from.axes[axis];
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    int64_t columns = 1;
    for (size_t a = 0; a < from.axes.size(); ++a) {
      const auto dim = static_cast<int64_t>(a);
      const bool is_folded = reduce != nullptr && std::binary_search(reduce->dims.begin(), reduce->dims.end(), dim);
      const bool indexes = std::find(ragged.by.begin(), ragged.by.end(), dim) != ragged.by.end();
      if (static_cast<int>(a) != axis && !is_folded && !indexes) columns *= std::max<int64_t>(from.axes[a].extent, 1);
    }
    const int64_t components = std::max<int64_t>(ir::elements(whole_.values[ragged.extents]), 1);
    const int64_t pieces = divide_up(columns, kColumns);
    const int64_t parts = std::min({divide_up(kWanted, pieces), ragged.extent / kFewestRows,
                                    std::max<int64_t>(ragged.extent / (kRowsOfPart * components), 1)});
    return parts < 2 || ragged.extent > kMostRows ? 0 : parts;
  }

  ValueId leave(const Op& op) {
    const int64_t parts = wanted_parts(op);
    const ValueId from = op.inputs[0];
    const Cut cut = this->cut(from, parts);
    const Value& value = whole_.values[op.output];
    if (op.kind == OpKind::kCombine && ir::elements(whole_.values[from]) == 0) {
      const ValueId zero = add(OpKind::kConstant, {}, ir::zero_of(value.dtype), fresh(value.name, "zero", value.dtype));
      return add(OpKind::kBroadcast, {zero}, ir::Dims{}, value);
    }
    if (const auto* combine = std::get_if<ir::Combine>(&op.attribute)) {
      ir::Combine attribute = *combine;
      attribute.components += parts > 0;
      const ValueId starts = start_of_parts(op.inputs[1], cut.ragged, parts, combine->rows);
      return add(op.kind, {nested(from, parts), starts}, attribute, value, op.label);
    }
    const auto& reduce = std::get<ir::Reduce>(op.attribute);
    if (parts == 0) return add(op.kind, {nested(from, 0)}, reduce, value, op.label);
    // Sums and products of low precision stay in compute_dtype between the stages.
    const bool rounds = op.kind == OpKind::kReduceSum || op.kind == OpKind::kReduceProd;
    const DType dtype = rounds ? compute_dtype(value.dtype) : value.dtype;
    ValueId operand = nested(from, parts);
    if (dtype != value.dtype) operand = add(OpKind::kConvert, {operand}, {}, fresh(value.name, "wide", dtype));
    // What folds the component, too, does so with the parts.
    const int64_t component = cut.ragged.by.back();
    ir::Reduce first{{}, 0}, second{{}, 0};
    int64_t gone = 0;
    for (size_t a = 0; a < result_.values[operand].axes.size(); ++a) {
      const auto axis = static_cast<int64_t>(a);
      const int64_t before = axis > cut.position ? axis - 1 : axis;
      const bool is_part = axis == cut.position;
      const bool indexes = std::find(cut.ragged.by.begin(), cut.ragged.by.end(), before) != cut.ragged.by.end();
      const bool folds = !is_part && std::binary_search(reduce.dims.begin(), reduce.dims.end(), before);
      if (folds && (!indexes || before != component)) {
        first.dims.push_back(axis);
        ++gone;
      } else if (folds || is_part) {
        second.dims.push_back(axis - gone);
      }
    }
    const ValueId partial = add(op.kind, {operand}, first, fresh(value.name, "parts", dtype), op.label);
    if (dtype == value.dtype) return add(op.kind, {partial}, second, value, op.label);
    const ValueId all = add(op.kind, {partial}, second, fresh(value.name, "all", dtype), op.label);
    return add(OpKind::kConvert, {all}, {}, value);
  }

  // A nested value, with its parts.
  ValueId nested(ValueId id, int64_t parts) {
    const auto key = std::pair(id, parts);
    if (const auto found = nested_.find(key); found != nested_.end()) return found->second;
    const ValueId made = nested_anew(id, parts);
    nested_.emplace(key, made);
    return made;
  }
  ValueId nested_anew(ValueId id, int64_t parts) {
    const Op& op = *defined_by_[id];
    const Cut cut = this->cut(id, parts);
    Value stated = fresh(name(id), parts > 0 ? "in_parts" : "rows", whole_.values[id].dtype);
    for (const ir::Axis& axis : whole_.values[id].axes) stated.axes.push_back({axis.extent});
    if (parts > 0) stated.axes.insert(stated.axes.begin() + cut.position, {parts});
    const int64_t most = parts > 0 ? divide_up(cut.ragged.extent, parts) : cut.ragged.extent;
    stated.axes[cut(ir::ragged_axis(whole_.values[id]))].extent = most;
    const ValueId extents = extent_of_parts(cut.ragged, parts);
    if (op.kind == OpKind::kPartition) {
      ir::Nest nest = std::get<ir::Nest>(op.attribute);
      const int64_t rows = whole_.values[op.inputs[0]].axes[nest.axis].extent;
      nest.most = most;
      nest.components += parts > 0;
      const ValueId starts = start_of_parts(op.inputs[1], cut.ragged, parts, rows);
      return add(op.kind, {renamed_[op.inputs[0]], starts, extents}, nest, stated, op.label);
    }
    if (op.kind == OpKind::kStretch) {
      ir::Nest nest = std::get<ir::Nest>(op.attribute);
      ValueId dense = renamed_[op.inputs[0]];
      if (parts > 0) {
        std::vector<int64_t> shape = ir::shape(stated), dims;
        shape[cut(nest.axis)] = 1;
        for (size_t a = 0; a < whole_.values[op.inputs[0]].axes.size(); ++a) {
          dims.push_back(cut(static_cast<int64_t>(a)));
        }
        dense = add(OpKind::kBroadcast, {dense}, ir::Dims{dims}, fresh(name(id), "of_parts", stated.dtype, shape));
        nest.by = cut(nest.by);
        nest.by.push_back(cut.position);
      }
      nest.axis = cut(nest.axis);
      nest.most = most;
      return add(op.kind, {dense, extents}, nest, stated, op.label);
    }
    // Nested before, and after.
    std::vector<ValueId> inputs;
    for (ValueId input : op.inputs) inputs.push_back(nested(input, parts));
    const Cut before = this->cut(op.inputs[0], parts);
    ir::Attribute attribute = op.attribute;
    if (auto* dims = std::get_if<ir::Dims>(&attribute); dims != nullptr && parts > 0) {
      if (op.kind == OpKind::kTranspose) {
        dims->dims = before(dims->dims);
        dims->dims.insert(dims->dims.begin() + cut.position, before.position);
      } else if (op.kind == OpKind::kBroadcast) {
        dims->dims = cut(dims->dims);
        dims->dims.insert(dims->dims.begin() + before.position, cut.position);
      } else {
        dims->dims = before(dims->dims);  // squeeze
      }
    }
    if (auto* reduce = std::get_if<ir::Reduce>(&attribute)) reduce->dims = before(reduce->dims);
    if (auto* scan = std::get_if<ir::Scan>(&attribute)) scan->axis = before(scan->axis);
    return add(op.kind, std::move(inputs), attribute, stated, op.label);
  }

  // Integers, one for each component or for each of its parts.
  ValueId number(int64_t value) {
    return add(OpKind::kConstant, {}, ir::Constant{value}, fresh(whole_.name, "number", DType::kS32));
  }
  ValueId full(int64_t value, const std::vector<int64_t>& shape) {
    return add(OpKind::kBroadcast, {number(value)}, ir::Dims{}, fresh(whole_.name, "numbers", DType::kS32, shape));
  }
  ValueId compute(OpKind kind, std::vector<ValueId> inputs) {
    return add(kind, std::move(inputs), {}, fresh(whole_.name, "index", DType::kS32));
  }
  ValueId clamped(ValueId id, int64_t high) {
    const std::vector<int64_t> shape = ir::shape(result_.values[id]);
    return compute(OpKind::kClamp, {full(0, shape), id, full(high, shape)});
  }
  ValueId for_parts(ValueId id, int64_t parts) {
    std::vector<int64_t> shape = ir::shape(result_.values[id]), dims;
    for (size_t a = 0; a < shape.size(); ++a) dims.push_back(static_cast<int64_t>(a));
    shape.push_back(parts);
    return add(OpKind::kBroadcast, {id}, ir::Dims{dims}, fresh(whole_.name, "indices", DType::kS32, shape));
  }

  // What the parts of components begin with, and how many rows a whole one has.
  struct Parts {
    ValueId offset, rows, extents;
  };
  const Parts& parts_of(const ir::Axis& ragged, int64_t parts) {
    const auto key = std::tuple(ragged.extents, ragged.extent, parts);
    if (const auto found = parts_.find(key); found != parts_.end()) return found->second;
    const ValueId count = clamped(renamed_[ragged.extents], ragged.extent);
    const std::vector<int64_t> components = ir::shape(result_.values[count]);
    const ValueId run =
        compute(OpKind::kDiv, {compute(OpKind::kAdd, {count, full(parts - 1, components)}), full(parts, components)});
    std::vector<int64_t> shape = components;
    shape.push_back(parts);
    const ir::Dims along{{static_cast<int64_t>(components.size())}};
    const ValueId number = add(OpKind::kIota, {}, along, fresh(whole_.name, "part", DType::kS32, shape));
    const ValueId rows = for_parts(run, parts), offset = compute(OpKind::kMul, {number, rows});
    const ValueId rest = compute(OpKind::kSub, {for_parts(count, parts), offset});
    const ValueId extents = compute(OpKind::kClamp, {full(0, shape), rest, rows});
    return parts_.emplace(key, Parts{offset, rows, extents}).first->second;
  }
  ValueId extent_of_parts(const ir::Axis& ragged, int64_t parts) {
    return parts == 0 ? renamed_[ragged.extents] : parts_of(ragged, parts).extents;
  }
  ValueId start_of_parts(ValueId starts, const ir::Axis& ragged, int64_t parts, int64_t rows) {
    if (parts == 0) return renamed_[starts];
    const auto key = std::tuple(starts, ragged.extents, ragged.extent, parts, rows);
    if (const auto found = starts_.find(key); found != starts_.end()) return found->second;
    const ValueId offset = parts_of(ragged, parts).offset;
    const ValueId first = for_parts(clamped(renamed_[starts], rows), parts);
    return starts_.emplace(key, compute(OpKind::kAdd, {first, offset})).first->second;
  }

  const Fusion& whole_;
  Fusion result_;
  std::vector<ValueId> renamed_;  // by value of the whole, for dense ones
  std::vector<const Op*> defined_by_;
  std::set<std::string> names_;
  std::map<std::pair<ValueId, int64_t>, ValueId> nested_;
  std::map<std::tuple<ValueId, int64_t, int64_t>, Parts> parts_;
  std::map<std::tuple<ValueId, ValueId, int64_t, int64_t, int64_t>, ValueId> starts_;
};

}  // namespace

bool has_nested(const Fusion& fusion) {
  return std::any_of(fusion.values.begin(), fusion.values.end(),
                     [](const Value& value) { return ir::ragged_axis(value) >= 0; });
}

Fusion in_ragged_parts(const Fusion& fusion) { return has_nested(fusion) ? Rewriter(fusion).run() : fusion; }

}  // namespace jf::plan
