#include "plan/ragged_again.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/unused.h"
#include "plan/recompute.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::ValueId;

// RaggedRows here: values with so many ragged axes or more.
struct RaggedRows {
  const Fusion& fusion;
  size_t axes = 1;

  bool has(ValueId id) const { return ir::ragged_axes(fusion.values[id]).size() >= axes; }
  bool leaves(const Op& op) const { return !op.inputs.empty() && has(op.inputs[0]) && !has(op.output); }
};

// By value: how many folds of rows, one after the other, it comes from.
std::vector<int> depths(const RaggedRows& rows) {
  std::vector<int> depth(rows.fusion.values.size(), 0);
  for (const Op& op : rows.fusion.ops) {
    for (ValueId id : op.inputs) depth[op.output] = std::max(depth[op.output], depth[id]);
    depth[op.output] += rows.leaves(op);
  }
  return depth;
}
std::vector<int> depths(const Fusion& fusion) { return depths(RaggedRows{fusion}); }

bool folds_again(const RaggedRows& rows) {
  const std::vector<int> depth = depths(rows);
  return std::any_of(depth.begin(), depth.end(), [](int folds) { return folds > 1; });
}

// All rows of those with most ragged axes.
RaggedRows pairs_of(const Fusion& segment) {
  RaggedRows rows{segment};
  for (const ir::Value& value : segment.values) rows.axes = std::max(rows.axes, ir::ragged_axes(value).size());
  return rows;
}

// Copies of values, named after them.
class Copies {
 public:
  explicit Copies(Fusion& result) : result_(result) {
    names_.insert(result.name);
    for (const ir::Value& value : result.values) names_.insert(value.name);
  }
  ValueId of(ValueId id) {
    ir::Value value = result_.values[id];
    const std::string name = value.name;
    for (int again = 2; !names_.insert(value.name).second; ++again) value.name = cat(name, "_again_", again);
    result_.values.push_back(std::move(value));
    return static_cast<ValueId>(result_.values.size()) - 1;
  }

 private:
  Fusion& result_;
  std::set<std::string> names_;
};

Fusion with_again(const RaggedRows& rows) {
  const Fusion& segment = rows.fusion;
  const std::vector<int> depth = depths(rows);
  Fusion result = segment;
  result.ops.clear();
  Copies fresh(result);
  std::map<ValueId, const Op*> defined;
  for (const Op& op : segment.ops) defined[op.output] = &op;
  std::set<ValueId> done;
  std::map<std::pair<ValueId, int>, ValueId> copies;
  // What a fold after `folds` others needs, as values of its own where it is nested.
  const auto needed = [&](const auto& self, ValueId id, int folds) -> ValueId {
    const auto found = defined.find(id);
    if (found == defined.end()) return id;
    const Op& op = *found->second;
    // RaggedRows of fewer axes, too, where no fold of theirs comes before.
    const bool nested = rows.has(id) || (depth[id] == 0 && ir::ragged_axis(segment.values[id]) >= 0),
               copied = nested && folds > 0;
    if (copied ? copies.contains({id, folds}) : !done.insert(id).second) return copied ? copies[{id, folds}] : id;
    Op made = op;
    const int before = rows.leaves(op) ? depth[id] - 1 : nested ? folds : 0;
    for (ValueId& input : made.inputs) input = self(self, input, before);
    if (copied) {
      copies[{id, folds}] = made.output = fresh.of(id);
    }
    result.ops.push_back(std::move(made));
    return result.ops.back().output;
  };
  for (const Op& op : segment.ops) {
    if (!rows.has(op.output)) needed(needed, op.output, 0);
  }
  return ir::without_unused(std::move(result));
}

}  // namespace

bool folds_again(const Fusion& segment) { return folds_again(RaggedRows{segment}); }
bool folds_pairs_again(const Fusion& segment) { return folds_again(pairs_of(segment)); }
Fusion with_rows_again(const Fusion& segment) { return with_again(RaggedRows{segment}); }
Fusion with_pairs_again(const Fusion& segment) { return with_again(pairs_of(segment)); }

Fusion with_rows_widened_again(const Fusion& segment) {
  const std::vector<int> depth = depths(segment);
  Fusion result = segment;
  result.ops.clear();
  Copies fresh(result);
  std::map<ValueId, const Op*> partitions, widened;
  std::map<std::pair<ValueId, int>, ValueId> copies;
  for (const Op& op : segment.ops) {
    if (op.kind == ir::OpKind::kPartition) partitions[op.output] = &op;
    Op made = op;
    const int folds = depth[op.output] - leaves_nested(segment, op);
    for (ValueId& input : made.inputs) {
      const auto found = widened.find(input);
      if (found == widened.end() || folds == 0) continue;
      const auto [copy, is_new] = copies.try_emplace({input, folds}, -1);
      if (is_new) {
        Op again = *found->second;
        again.output = copy->second = fresh.of(input);
        result.ops.push_back(std::move(again));
      }
      input = copy->second;
    }
    const auto bytes = [&](ValueId id) { return size_of(segment.values[id].dtype); };
    if (op.kind == ir::OpKind::kConvert && partitions.contains(op.inputs[0]) &&
        bytes(op.inputs[0]) < bytes(op.output)) {
      widened[op.output] = &op;
    }
    result.ops.push_back(std::move(made));
  }
  return result;
}

Fusion with_turned_rows_again(const Fusion& segment) {
  const std::vector<int> depth = depths(segment);
  Fusion result = segment;
  result.ops.clear();
  Copies copies(result);
  std::map<ValueId, const Op*> defined;
  for (const Op& op : segment.ops) defined[op.output] = &op;
  // How a value is read: the order of its axes, behind those of each value on the way that has other axes.
  using Way = std::vector<int64_t>;
  std::map<std::pair<ValueId, Way>, ValueId> made;
  const auto needed = [&](const auto& self, ValueId id, const Way& way) -> ValueId {
    const auto found = defined.find(id);
    if (found == defined.end()) return id;
    Op op = *found->second;
    const bool nested = ir::ragged_axis(segment.values[id]) >= 0;
    // What no rows are folded for has as many loops as its readers.
    const Way own = nested || depth[id] == 0 ? way : Way{};
    if (const auto known = made.find({id, own}); known != made.end()) return known->second;
    Way next = own;
    const size_t rank = segment.values[id].axes.size();
    const bool turned = next.size() >= rank && nested && !next.empty() && next.back() >= 0;
    if (op.kind == ir::OpKind::kTranspose && nested) {
      const std::vector<int64_t>& dims = std::get<ir::Dims>(op.attribute).dims;
      Way order(rank);
      bool in_order = true;
      for (size_t i = 0; i < rank; ++i) {
        order[i] = dims[turned ? next[next.size() - rank + i] : static_cast<int64_t>(i)];
        in_order = in_order && order[i] == static_cast<int64_t>(i);
      }
      if (turned) next.resize(next.size() - rank);
      if (!in_order) next.insert(next.end(), order.begin(), order.end());
    } else if (turned && ir::info(op.kind).op_class != ir::OpClass::kPointwise) {
      next.push_back(-1 - id);
    }
    for (ValueId& input : op.inputs) input = self(self, input, next);
    if (!own.empty()) op.output = copies.of(id);
    made[{id, own}] = op.output;
    result.ops.push_back(op);
    return op.output;
  };
  for (const Op& op : segment.ops) {
    if (!RaggedRows{segment}.has(op.output)) needed(needed, op.output, {});
  }
  for (const ValueId id : segment.outputs) needed(needed, id, {});
  return ir::without_unused(std::move(result));
}

std::vector<std::pair<ValueId, std::vector<ValueId>>> values_of_folds(const Fusion& segment) {
  const std::vector<int> depth = depths(segment);
  std::map<ValueId, const Op*> defined;
  for (const Op& op : segment.ops) defined[op.output] = &op;
  std::map<int, std::pair<ValueId, std::vector<ValueId>>> groups;
  std::set<ValueId> known;
  for (const Op& op : segment.ops) {
    if (!leaves_nested(segment, op)) continue;
    known.insert(op.output);
    const auto [group, fresh] = groups.try_emplace(depth[op.output], op.output, std::vector<ValueId>{});
    std::vector<ValueId>& values = group->second.second;
    if (!fresh) values.push_back(op.output);
    std::vector<ValueId> todo = op.inputs;
    while (!todo.empty()) {
      const ValueId id = todo.back();
      todo.pop_back();
      const auto found = defined.find(id);
      if (found == defined.end() || !known.insert(id).second) continue;
      values.push_back(id);
      todo.insert(todo.end(), found->second->inputs.begin(), found->second->inputs.end());
    }
  }
  std::vector<std::pair<ValueId, std::vector<ValueId>>> result;
  for (auto& [folds, group] : groups) result.push_back(std::move(group));
  for (const Op& op : segment.ops) {
    if (!result.empty() && known.insert(op.output).second) result.back().second.push_back(op.output);
  }
  return result;
}

}  // namespace jf::plan
