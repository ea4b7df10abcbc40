#include "plan/after_folds.h"

#include <algorithm>
#include <set>

#include "base/lists.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::ValueId;

// Results of a kernel of nested values.
constexpr size_t kMostResults = 8;

// A fold of rows alone: every component has results of its own.
bool folds_rows(const Fusion& fusion, const Op& op) {
  const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
  const int axis = reduce == nullptr ? -1 : ir::ragged_axis(fusion.values[op.inputs[0]]);
  return axis >= 0 && reduce->dims == std::vector<int64_t>{axis};
}

class Joiner {
 public:
  Joiner(const Fusion& fusion, std::vector<Draft> drafts)
      : fusion_(fusion), drafts_(std::move(drafts)), definition_(fusion.values.size(), nullptr) {
    for (const Op& op : fusion.ops) definition_[op.output] = &op;
  }

  std::vector<Draft> run() && {
    for (size_t folds = 0; folds < drafts_.size(); ++folds) {
      if (!only_folds_rows(drafts_[folds])) continue;
      for (size_t later = folds + 1; later < drafts_.size(); ++later) {
        if (follows(drafts_[later], drafts_[folds])) join(folds, later--);
      }
    }
    return std::move(drafts_);
  }

 private:
  // Values with several ragged axes have loops of their own.
  bool only_folds_rows(const Draft& draft) const {
    return draft.kind == DraftKind::kNested &&
           std::none_of(
               draft.ops.begin(), draft.ops.end(),
               [&](size_t number) { return ir::ragged_axes(fusion_.values[fusion_.ops[number].output]).size() > 1; }) &&
           std::all_of(draft.outputs.begin(), draft.outputs.end(),
                       [&](ValueId id) { return definition_[id] != nullptr && folds_rows(fusion_, *definition_[id]); });
  }

  // Whether a draft is pointwise in results of the folds and in constants, and has their shape.
  bool follows(const Draft& draft, const Draft& folds) const {
    if (draft.kind != DraftKind::kPointwise || draft.outputs.size() + folds.outputs.size() > kMostResults) return false;
    const std::vector<int64_t> shape = ir::shape(fusion_.values[folds.outputs.front()]);
    std::set<ValueId> known(folds.outputs.begin(), folds.outputs.end()), from_folds = known;
    for (size_t number : draft.ops) {
      const Op& op = fusion_.ops[number];
      const OpClass op_class = ir::info(op.kind).op_class;
      const bool constant = op_class == OpClass::kConstant ||
                            (op.kind == OpKind::kBroadcast && fusion_.values[op.inputs[0]].axes.empty());
      if (!constant && op_class != OpClass::kPointwise) return false;
      if (!std::all_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return known.contains(id); }))
        return false;
      known.insert(op.output);
      const bool from =
          std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return from_folds.contains(id); });
      if (from) from_folds.insert(op.output);
      if (op_class != OpClass::kConstant && ir::shape(fusion_.values[op.output]) != shape) return false;
    }
    return std::all_of(draft.outputs.begin(), draft.outputs.end(),
                       [&](ValueId id) { return from_folds.contains(id) && definition_[id] != nullptr; });
  }

  void join(size_t folds, size_t later) {
    const Draft moved = std::move(drafts_[later]);
    drafts_.erase(drafts_.begin() + static_cast<std::ptrdiff_t>(later));
    Draft& draft = drafts_[folds];
    draft.ops.insert(draft.ops.end(), moved.ops.begin(), moved.ops.end());
    std::sort(draft.ops.begin(), draft.ops.end());
    draft.ops.erase(std::unique(draft.ops.begin(), draft.ops.end()), draft.ops.end());
    std::erase_if(draft.outputs, [&](ValueId id) { return !is_read(id, folds); });
    draft.outputs.insert(draft.outputs.end(), moved.outputs.begin(), moved.outputs.end());
    std::sort(draft.outputs.begin(), draft.outputs.end());
    draft.places.resize(draft.outputs.size());
  }
  // Whether anything but the draft itself reads a value from memory.
  bool is_read(ValueId id, size_t by_others_than) const {
    if (contains(fusion_.outputs, id)) return true;
    for (size_t other = 0; other < drafts_.size(); ++other) {
      if (other == by_others_than) continue;
      const std::vector<size_t>& ops = drafts_[other].ops;
      const bool computes = std::any_of(ops.begin(), ops.end(), [&](size_t n) { return fusion_.ops[n].output == id; });
      const bool uses = std::any_of(ops.begin(), ops.end(), [&](size_t n) {
        const std::vector<ValueId>& inputs = fusion_.ops[n].inputs;
        return contains(inputs, id);
      });
      const bool copies = contains(drafts_[other].outputs, id);
      if ((uses && !computes) || copies) return true;
    }
    return false;
  }

  const Fusion& fusion_;
  std::vector<Draft> drafts_;
  std::vector<const Op*> definition_;
};

}  // namespace

std::vector<Draft> with_what_follows_folds(const Fusion& fusion, std::vector<Draft> drafts) {
  return Joiner(fusion, std::move(drafts)).run();
}

}  // namespace jf::plan
