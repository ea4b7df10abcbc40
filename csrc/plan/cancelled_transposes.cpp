#include "plan/cancelled_transposes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "ir/append.h"
#include "ir/unused.h"
#include "ir/verify.h"

namespace jf::plan {
namespace {

using ir::Dims;
using ir::Fusion;
using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::Reduce;
using ir::Value;
using ir::ValueId;
using Order = std::vector<int64_t>;

bool is_sorted(const Order& order) { return std::is_sorted(order.begin(), order.end()); }

class Postponer {
 public:
  explicit Postponer(const Fusion& whole)
      : whole_(whole), turned_(whole.values.size()), definition_(whole.values.size(), nullptr) {
    for (const Op& op : whole.ops) definition_[op.output] = &op;
    result_.name = whole.name;
    names_.insert(whole.name);
    for (const Value& value : whole.values) names_.insert(value.name);
    for (ValueId id : whole.inputs) {
      result_.values.push_back(whole.values[id]);
      result_.inputs.push_back(static_cast<ValueId>(result_.values.size()) - 1);
      turned_[id] = in_order(result_.inputs.back());
    }
    for (const Op& op : whole.ops) turned_[op.output] = rewritten(op);
    for (ValueId id : whole.outputs) result_.outputs.push_back(plain(id));
    // Each result keeps its name, so it is a value of its own.
    std::set<ValueId> named(result_.inputs.begin(), result_.inputs.end());
    std::map<std::string, ValueId> by_name;
    for (size_t id = 0; id < result_.values.size(); ++id) by_name[result_.values[id].name] = static_cast<ValueId>(id);
    for (size_t i = 0; i < whole.outputs.size(); ++i) {
      const ValueId id = result_.outputs[i];
      const std::string name = whole.values[whole.outputs[i]].name, now = result_.values[id].name;
      distinct_ = distinct_ && (named.insert(id).second || now == name);
      if (const auto other = by_name.find(name); other != by_name.end()) {
        result_.values[other->second].name = now;
        by_name[now] = other->second;
      }
      result_.values[id].name = name;
      by_name[name] = id;
    }
  }
  // Nothing where results would be one value.
  std::optional<Fusion> finish() && {
    if (!distinct_) return std::nullopt;
    return ir::without_unused(std::move(result_));
  }

 private:
  // A value of the whole: axis i is axis order[i] of value `id` of the result.
  struct Turned {
    ValueId id = -1;
    Order order = {};
  };
  Turned in_order(ValueId id) const {
    Order order(result_.values[id].axes.size());
    std::iota(order.begin(), order.end(), 0);
    return {id, order};
  }

  Turned rewritten(const Op& op) {
    if (op.kind == OpKind::kTranspose) {
      const Turned& from = turned_[op.inputs[0]];
      Turned turned{from.id};
      for (const int64_t axis : std::get<Dims>(op.attribute).dims) turned.order.push_back(from.order[axis]);
      return turned;
    }
    if (op.inputs.size() == 1 && !is_sorted(turned_[op.inputs[0]].order)) {
      const Turned& from = turned_[op.inputs[0]];
      const auto* reduce = std::get_if<Reduce>(&op.attribute);
      if (reduce != nullptr && reduce->parts == 0) return folded(op, from, *reduce);
      const auto* scan = std::get_if<ir::Scan>(&op.attribute);
      if (scan != nullptr && scan->parts == 0) {
        ir::Scan along = *scan;
        along.axis = from.order[scan->axis];
        return {add(op, {from.id}, along), from.order};
      }
    }
    if (op.kind == OpKind::kBroadcast && !is_sorted(turned_[op.inputs[0]].order)) {
      // Its new axes stay where they are, the others trade places.
      const Order& from = turned_[op.inputs[0]].order;
      const Order& dims = std::get<Dims>(op.attribute).dims;
      Order order(whole_.values[op.output].axes.size());
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = 0; i < dims.size(); ++i) order[dims[i]] = dims[from[i]];
      return {broadcast(op.output, order), order};
    }
    // What is only stored, two to a byte, is stored in its own order.
    const bool is_moved = whole_.values[op.output].dtype != DType::kU4;
    if (ir::info(op.kind).op_class == OpClass::kPointwise && is_moved) {
      const auto first =
          std::find_if(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return !is_sorted(turned_[id].order); });
      if (first != op.inputs.end()) {
        const Order order = turned_[*first].order;
        const bool alike = std::all_of(op.inputs.begin(), op.inputs.end(),
                                       [&](ValueId id) { return turned_[id].order == order || is_broadcast(id); });
        if (alike) {
          std::vector<ValueId> inputs;
          for (ValueId id : op.inputs) {
            inputs.push_back(ordered(id, order));
          }
          return {add(op, std::move(inputs), op.attribute), order};
        }
      }
    }
    std::vector<ValueId> inputs;
    for (ValueId id : op.inputs) inputs.push_back(plain(id));
    return in_order(add(op, std::move(inputs), op.attribute));
  }

  Turned folded(const Op& op, const Turned& from, const Reduce& reduce) {
    Reduce own = reduce;
    Order kept, order;
    for (int64_t& dim : own.dims) dim = from.order[dim];
    std::sort(own.dims.begin(), own.dims.end());
    for (size_t axis = 0; axis < from.order.size(); ++axis) {
      if (!std::binary_search(own.dims.begin(), own.dims.end(), from.order[axis])) kept.push_back(from.order[axis]);
    }
    for (const int64_t axis : kept) {
      order.push_back(std::count_if(kept.begin(), kept.end(), [&](int64_t other) { return other < axis; }));
    }
    return {add(op, {from.id}, std::move(own)), order};
  }

  bool is_broadcast(ValueId id) const {
    return definition_[id] != nullptr && definition_[id]->kind == OpKind::kBroadcast;
  }
  // A value of the whole, whose axis i is axis order[i] of what results.
  ValueId ordered(ValueId id, const Order& order) {
    const Turned& from = turned_[id];
    if (from.order == order) return from.id;
    if (is_broadcast(id)) return broadcast(id, order);
    Order dims(order.size());
    for (size_t i = 0; i < order.size(); ++i) dims[order[i]] = from.order[i];
    return ir::append(result_, OpKind::kTranspose, {from.id}, Dims{dims}, fresh(whole_.values[id]));
  }
  ValueId broadcast(ValueId id, const Order& order) {
    const Op& op = *definition_[id];
    Value value = fresh(whole_.values[id]);
    std::vector<ir::Axis> axes(order.size());
    for (size_t i = 0; i < order.size(); ++i) axes[order[i]] = value.axes[i];
    value.axes = std::move(axes);
    Order places, ranks;
    for (const int64_t axis : std::get<Dims>(op.attribute).dims) places.push_back(order[axis]);
    for (const int64_t place : places) {
      ranks.push_back(std::count_if(places.begin(), places.end(), [&](int64_t other) { return other < place; }));
    }
    const ValueId from = ordered(op.inputs[0], ranks);
    std::sort(places.begin(), places.end());
    return ir::append(result_, OpKind::kBroadcast, {from}, Dims{places}, value, op.label);
  }

  ValueId add(const Op& op, std::vector<ValueId> inputs, ir::Attribute attribute) {
    return ir::append(result_, op.kind, std::move(inputs), std::move(attribute), whole_.values[op.output], op.label);
  }
  Value fresh(Value value) {
    value.name += "_turned";
    while (!names_.insert(value.name).second) value.name += "_";
    return value;
  }
  // The value as the whole has it.
  ValueId plain(ValueId id) {
    if (!is_sorted(turned_[id].order)) {
      Order order(turned_[id].order.size());
      std::iota(order.begin(), order.end(), 0);
      turned_[id] = in_order(ordered(id, order));
    }
    return turned_[id].id;
  }

  const Fusion& whole_;
  Fusion result_;
  std::vector<Turned> turned_;
  std::vector<const Op*> definition_;  // by value of the whole; null for inputs
  std::set<std::string> names_;
  bool distinct_ = true;
};

int64_t turned_elements(const Fusion& fusion) {
  int64_t elements = 0;
  for (const Op& op : fusion.ops) {
    if (op.kind == OpKind::kTranspose) elements += ir::elements(fusion.values[op.output]);
  }
  return elements;
}

}  // namespace

Fusion with_cancelled_transposes(const Fusion& fusion) {
  const int64_t elements = turned_elements(fusion);
  if (elements == 0) return fusion;
  const std::optional<Fusion> postponed = Postponer(fusion).finish();
  if (!postponed || turned_elements(*postponed) >= elements) return fusion;
  ir::verify(*postponed);
  return *postponed;
}

}  // namespace jf::plan
