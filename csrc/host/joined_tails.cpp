#include "host/joined_tails.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "plan/extract.h"
#include "plan/segment.h"

namespace jf::host {
namespace {

using ir::Fusion;
using ir::ValueId;

// What a segment adds up along the columns of a row, [m, columns], if it does nothing else.
std::optional<ValueId> summand(const plan::Plan& plan, const plan::Segment& segment) {
  if (segment.strategy != plan::Strategy::kReduction || segment.outputs.size() != 1) return std::nullopt;
  const auto& ops = plan.fusion.ops;
  const auto op = std::find_if(ops.begin(), ops.end(), [&](const ir::Op& o) { return o.output == segment.outputs[0]; });
  if (op == ops.end() || op->kind != ir::OpKind::kReduceSum) return std::nullopt;
  const auto& reduce = std::get<ir::Reduce>(op->attribute);
  const ir::Value& operand = plan.fusion.values[op->inputs[0]];
  const bool rows = operand.axes.size() == 2 && reduce.parts == 0 && reduce.dims == std::vector<int64_t>{1};
  if (!rows || operand.dtype != DType::kF32) return std::nullopt;
  return op->inputs[0];
}

}  // namespace

std::vector<size_t> readers(const plan::Plan& plan, ValueId value) {
  const Fusion& whole = plan.fusion;
  for (const ir::Op& op : whole.ops) {
    if (op.kind == ir::OpKind::kConcat && contains(op.inputs, value)) return {};
  }
  std::vector<size_t> found;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    if (contains(plan.segments[i].inputs, value)) found.push_back(i);
  }
  return found;
}

std::string join(const plan::Plan& plan, const std::vector<size_t>& reading, const grouped::Problem& problem,
                 JoinedTails& joined) {
  const Fusion& whole = plan.fusion;
  // An element of the results is made of one column of the product, or of two.
  int64_t columns = problem.n;
  for (const size_t i : reading) {
    const auto& axes = whole.values[plan.segments[i].outputs[0]].axes;
    if (axes.size() == 2 && axes[1].extent * 2 == problem.n) columns = axes[1].extent;
  }
  const auto is_of_places = [&](ValueId id) {
    const auto& axes = whole.values[id].axes;
    return axes.size() == 2 && axes[0].extent == problem.m && axes[1].extent == columns;
  };
  std::set<ValueId> read, stored;
  std::optional<ValueId> added;
  const auto take = [&](size_t i) {
    const plan::Segment& segment = plan.segments[i];
    joined.parts.push_back(i);
    read.insert(segment.inputs.begin(), segment.inputs.end());
    stored.insert(segment.outputs.begin(), segment.outputs.end());
  };
  const auto is_pointwise = [&](const plan::Segment& segment) {
    return segment.strategy == plan::Strategy::kPointwise &&
           std::all_of(segment.outputs.begin(), segment.outputs.end(), is_of_places);
  };
  for (const size_t i : reading) {
    const plan::Segment& segment = plan.segments[i];
    if (const auto of = summand(plan, segment); of && is_of_places(*of) && columns == problem.n) {
      if (added) return "its columns are added up twice";
      added = of;
      joined.sum = segment.outputs[0];
    } else if (!is_pointwise(segment)) {
      return cat("segment ", i, " reads the product too");
    }
    take(i);
  }
  for (size_t i = 0; i < reading.back(); ++i) {
    const plan::Segment& segment = plan.segments[i];
    const auto is_read = [&](ValueId id) { return read.count(id) > 0; };
    if (contains(joined.parts, i) || !is_pointwise(segment) || segment.inputs.empty()) continue;
    if (std::any_of(segment.outputs.begin(), segment.outputs.end(), is_read)) continue;
    if (std::all_of(segment.inputs.begin(), segment.inputs.end(), is_read)) take(i);
  }
  std::sort(joined.parts.begin(), joined.parts.end());
  // All run in the last one's place.
  for (size_t i = joined.parts.front(); i < joined.parts.back(); ++i) {
    if (contains(joined.parts, i)) continue;
    for (const ValueId id : plan.segments[i].inputs) {
      if (stored.count(id) > 0) return cat("segment ", i, " reads one of its results before all are there");
    }
  }
  for (const ValueId id : stored) {
    if (read.count(id) > 0) return "one of its results is made of another";
  }

  plan::Draft draft;
  for (const size_t i : joined.parts) {
    for (const ValueId id : plan.segments[i].outputs) {
      if (joined.sum != id) draft.outputs.push_back(id);
    }
  }
  if (draft.outputs.empty() || draft.outputs.size() > 3) {
    return cat("it has ", draft.outputs.size(), " results, it takes one to three");
  }
  std::sort(draft.outputs.begin(), draft.outputs.end());
  if (added) draft.outputs.push_back(*added);
  draft.places.assign(draft.outputs.size(), {0, 1});
  draft.ops = plan::ops_between(whole, read, draft.outputs);
  joined.segment = plan::extract_fused(whole, draft, cat(plan.segments[reading.front()].fusion.name, "_all"));
  return "";
}

}  // namespace jf::host
