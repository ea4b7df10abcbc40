#include "plan/merged_axes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/union_find.h"
#include "ir/verify.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::Reduce;
using ir::Value;
using ir::ValueId;

// The list of axes that the op folds, drops or maps its operand's to; null for a pointwise op.
std::vector<int64_t>* dims_of(Op& op) {
  if (auto* reduce = std::get_if<Reduce>(&op.attribute)) return &reduce->dims;
  auto* dims = std::get_if<ir::Dims>(&op.attribute);
  return dims == nullptr ? nullptr : &dims->dims;
}

class Merger {
 public:
  explicit Merger(const Fusion& fusion) : fusion_(fusion) {
    int count = 0;
    for (const Value& value : fusion.values) {
      first_.push_back(count);
      count += static_cast<int>(value.axes.size());
    }
    classes_ = UnionFind(count);
    for (const Op& op : fusion.ops) relate(op);
    for (const auto& [value, axis] : apart_) blocked_.insert(class_of(value, axis));
  }

  // The fusion with two axes merged; nothing where there are none.
  std::optional<Fusion> run() {
    for (const Op& op : fusion_.ops) {
      const auto* reduce = std::get_if<Reduce>(&op.attribute);
      if (reduce == nullptr || reduce->parts > 0) continue;
      for (size_t i = 1; i < reduce->dims.size(); ++i) {
        if (reduce->dims[i] != reduce->dims[i - 1] + 1) continue;
        const Pair pair = {class_of(op.inputs[0], reduce->dims[i - 1]), class_of(op.inputs[0], reduce->dims[i])};
        if (folds_beside(pair) && stay_together(pair)) return merged(pair);
      }
    }
    return std::nullopt;
  }

 private:
  // Classes of axes that have the same index wherever they have more than one element.
  using Pair = std::pair<int, int>;

  int class_of(ValueId value, int64_t axis) { return classes_.find(first_[value] + static_cast<int>(axis)); }
  void relate(ValueId a, int64_t axis_of_a, ValueId b, int64_t axis_of_b) {
    classes_.unite(first_[a] + static_cast<int>(axis_of_a), first_[b] + static_cast<int>(axis_of_b));
  }
  void block(ValueId value) {
    for (size_t a = 0; a < fusion_.values[value].axes.size(); ++a) apart_.emplace_back(value, a);
  }
  void relate(const Op& op) {
    const auto* dims = std::get_if<ir::Dims>(&op.attribute);
    const auto* reduce = std::get_if<Reduce>(&op.attribute);
    if (op.kind == OpKind::kBroadcast) {
      for (size_t a = 0; a < dims->dims.size(); ++a) relate(op.inputs[0], a, op.output, dims->dims[a]);
    } else if (op.kind == OpKind::kSqueeze || (reduce != nullptr && reduce->parts == 0)) {
      const std::vector<int64_t>& gone = reduce != nullptr ? reduce->dims : dims->dims;
      int64_t to = 0;
      for (size_t a = 0; a < fusion_.values[op.inputs[0]].axes.size(); ++a) {
        if (std::binary_search(gone.begin(), gone.end(), static_cast<int64_t>(a))) continue;
        relate(op.inputs[0], a, op.output, to++);
      }
    } else if (ir::info(op.kind).op_class == OpClass::kPointwise || op.kind == OpKind::kCopy) {
      for (ValueId id : op.inputs) {
        for (size_t a = 0; a < fusion_.values[id].axes.size(); ++a) relate(id, a, op.output, a);
      }
    } else if (op.kind != OpKind::kConstant) {
      for (ValueId id : op.inputs) block(id);
      block(op.output);
    }
  }

  // Where the first of the two stands in a value, right before the other; -1 where neither does, nothing where they
  // are not together.
  std::optional<int> place(ValueId value, const Pair& pair) {
    const std::vector<ir::Axis>& axes = fusion_.values[value].axes;
    std::vector<int> first, second;
    for (int a = 0; a < static_cast<int>(axes.size()); ++a) {
      if (class_of(value, a) == pair.first) first.push_back(a);
      if (class_of(value, a) == pair.second) second.push_back(a);
    }
    if (first.empty() && second.empty()) return -1;
    if (first.size() != 1 || second.size() != 1 || second[0] != first[0] + 1) return std::nullopt;
    return first[0];
  }
  bool stay_together(const Pair& pair) {
    if (pair.first == pair.second || blocked_.count(pair.first) > 0 || blocked_.count(pair.second) > 0) return false;
    for (size_t id = 0; id < fusion_.values.size(); ++id) {
      const std::optional<int> at = place(static_cast<ValueId>(id), pair);
      if (!at) return false;
      if (*at < 0) continue;
      // Both have all their elements or one each, which stands for all.
      const std::vector<ir::Axis>& axes = fusion_.values[id].axes;
      if ((axes[*at].extent == 1) != (axes[*at + 1].extent == 1) || axes[*at].kind != axes[*at + 1].kind) return false;
    }
    return std::all_of(fusion_.ops.begin(), fusion_.ops.end(), [&](const Op& op) {
      const auto* dims = std::get_if<ir::Dims>(&op.attribute);
      const auto* reduce = std::get_if<Reduce>(&op.attribute);
      if (reduce == nullptr && op.kind != OpKind::kSqueeze) return true;
      const int at = *place(op.inputs[0], pair);
      const std::vector<int64_t>& gone = reduce != nullptr ? reduce->dims : dims->dims;
      return at < 0 ||
             std::binary_search(gone.begin(), gone.end(), at) == std::binary_search(gone.begin(), gone.end(), at + 1);
    });
  }
  // Whether something folds other axes where there are both.
  bool folds_beside(const Pair& pair) {
    return std::any_of(fusion_.ops.begin(), fusion_.ops.end(), [&](const Op& op) {
      const auto* reduce = std::get_if<Reduce>(&op.attribute);
      const std::optional<int> at = reduce == nullptr ? std::nullopt : place(op.inputs[0], pair);
      return at && *at >= 0 && !std::binary_search(reduce->dims.begin(), reduce->dims.end(), *at);
    });
  }

  Fusion merged(const Pair& pair) {
    Fusion result = fusion_;
    result.ops.clear();
    for (size_t id = 0; id < result.values.size(); ++id) {
      const int at = *place(static_cast<ValueId>(id), pair);
      if (at < 0) continue;
      std::vector<ir::Axis>& axes = result.values[id].axes;
      axes[at].extent *= axes[at + 1].extent;
      axes.erase(axes.begin() + at + 1);
    }
    for (Op op : fusion_.ops) {
      // What a broadcast maps to is counted in its result, what others fold in their operand.
      const int at = op.inputs.empty() ? -1 : *place(op.kind == OpKind::kBroadcast ? op.output : op.inputs[0], pair);
      if (std::vector<int64_t>* dims = dims_of(op); dims != nullptr && at >= 0) {
        std::erase(*dims, at + 1);
        for (int64_t& dim : *dims) dim -= dim > at + 1;
      }
      result.ops.push_back(std::move(op));
    }
    ir::verify(result);
    return result;
  }

  const Fusion& fusion_;
  std::vector<int> first_;  // by value: the number of its first axis
  UnionFind classes_;
  std::vector<std::pair<ValueId, int64_t>> apart_;  // axes that ops know by themselves
  std::set<int> blocked_;
};

}  // namespace

Fusion with_merged_axes(Fusion fusion) {
  while (std::optional<Fusion> fewer = Merger(fusion).run()) fusion = std::move(*fewer);
  return fusion;
}

}  // namespace jf::plan
