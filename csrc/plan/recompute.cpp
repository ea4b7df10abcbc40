#include "plan/recompute.h"

#include <algorithm>

#include "base/lists.h"

namespace jf::plan {
namespace {

using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::ValueId;

constexpr int kMany = 1000;
// A kernel that computes a value again rather than read it: no more full-size values than a load and a store together,
// and little arithmetic.
constexpr int kMaxAgainCost = 12, kMaxAgainReads = 2;
constexpr int kDearOp = 8;
// Without a reduction to hide arithmetic behind: so little of it, from one value of no more bytes, that every kernel
// reads as much as it would otherwise and a store is saved.
constexpr int kMaxTrivialCost = 2, kMaxTrivialReads = 1;
// Beyond so many values none is made again, and the lists stay short.
constexpr size_t kMostReads = 16;

bool is_nested(const ir::Value& value) { return ir::ragged_axis(value) >= 0; }

int64_t bytes(const ir::Value& value) { return bytes_of(value.dtype, ir::elements(value)); }

}  // namespace

std::vector<int64_t> iteration_shape(const ir::Value& value) {
  std::vector<int64_t> shape;
  for (const ir::Axis& axis : value.axes) {
    if (axis.extent != 1) shape.push_back(axis.extent);
  }
  return shape;
}

bool leaves_nested(const ir::Fusion& fusion, const ir::Op& op) {
  return !op.inputs.empty() && is_nested(fusion.values[op.inputs[0]]) && !is_nested(fusion.values[op.output]);
}

Recompute::Recompute(const ir::Fusion& fusion, const Clusters& clusters)
    : fusion_(fusion),
      clusters_(clusters),
      is_input_(fusion.values.size(), false),
      is_spread_(fusion.values.size(), false),
      is_compared_(fusion.values.size(), false),
      again_(fusion.values.size()) {
  for (ValueId id : fusion.inputs) is_input_[id] = true;
  std::vector<bool> is_fold(fusion.values.size(), false);  // along its axes, too
  for (const Op& op : fusion.ops) {
    again_[op.output] = again(op);
    is_spread_[op.output] = op.kind == OpKind::kSpread;
    const bool asks_order =
        op.kind == OpKind::kLt || op.kind == OpKind::kLe || op.kind == OpKind::kGt || op.kind == OpKind::kGe;
    const bool with_fold = std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return is_fold[id]; });
    is_fold[op.output] = ir::info(op.kind).op_class == OpClass::kReduce ||
                         ((op.kind == OpKind::kBroadcast || op.kind == OpKind::kSqueeze) && with_fold);
    if (op.kind != OpKind::kEq && op.kind != OpKind::kNe && !(asks_order && with_fold)) continue;
    for (ValueId id : op.inputs) is_compared_[id] = true;
  }
}

bool Recompute::is_small(ValueId value) const {
  const int cluster = clusters_.of[value];
  return cluster >= 0 && iteration_shape(fusion_.values[value]).size() < clusters_.all[cluster].space.extents.size();
}

Recompute::Again Recompute::again(const Op& op) const {
  const OpClass op_class = ir::info(op.kind).op_class;
  const Again dear{kMany, false, {}};
  if (op_class == OpClass::kReduce || op_class == OpClass::kScan || op_class == OpClass::kGrouped ||
      is_nested(fusion_.values[op.output]) || leaves_nested(fusion_, op)) {
    return dear;
  }
  Again result;
  result.moves = op.kind == OpKind::kTranspose || ir::reads_memory(op.kind);
  // What parts begin with is known only where the loops go along the parts.
  if (op.kind == OpKind::kSpread ||
      std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return is_spread_[id]; })) {
    return dear;
  }
  if (op_class == OpClass::kSearch) result.cost = kDearOp;
  if (op_class == OpClass::kPointwise && op.kind != OpKind::kConvert) {
    result.cost = ir::info(op.kind).operands == ir::OperandTypes::kFloating ? kDearOp : 1;
  }
  for (ValueId id : op.inputs) {
    std::vector<ValueId> reads = {id};
    const bool in_memory = is_input_[id] || is_small(id) || again_[id].cost >= kMany;
    if (!in_memory) {
      result.cost = std::min(kMany, result.cost + again_[id].cost);
      result.moves = result.moves || again_[id].moves;
      reads = again_[id].reads;
    }
    for (ValueId read : reads) {
      if (!contains(result.reads, read)) result.reads.push_back(read);
    }
  }
  if (result.reads.size() > kMostReads) return dear;
  return result;
}

bool Recompute::better_again(ValueId value) const {
  return again_[value].cost <= kMaxAgainCost && !is_small(value) && large_reads(value) <= kMaxAgainReads;
}

bool Recompute::is_trivial(ValueId value) const { return again_[value].cost <= kMaxTrivialCost && is_of_one(value); }

bool Recompute::saves_store(ValueId value) const {
  return again_[value].cost <= kMaxAgainCost && is_of_one(value) && !is_compared_[value];
}

bool Recompute::is_of_one(ValueId value) const {
  const Again& again = again_[value];
  return !again.moves && !is_small(value) && large_reads(value) <= kMaxTrivialReads &&
         std::all_of(again.reads.begin(), again.reads.end(),
                     [&](ValueId id) { return bytes(fusion_.values[id]) <= bytes(fusion_.values[value]); });
}

// How many values of its size it takes to compute a value again.
int64_t Recompute::large_reads(ValueId value) const {
  const Again& again = again_[value];
  const int64_t size = ir::elements(fusion_.values[value]);
  return std::count_if(again.reads.begin(), again.reads.end(),
                       [&](ValueId id) { return 2 * ir::elements(fusion_.values[id]) > size; });
}

}  // namespace jf::plan
