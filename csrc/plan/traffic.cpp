#include "plan/traffic.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/integers.h"
#include "base/lists.h"
#include "graph/index.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::ValueId;

// Relative to Traffic::cost_per_element. An op on floats only is a polynomial or worse.
constexpr double kSimpleOp = 0.03, kFloatingOp = 0.4, kBytesOfUnit = 12;

// The weights of a value's nodes, of its axes at first, as steps of its loops.
std::vector<int64_t> along_loops(const schedule::Domain& domain, std::vector<int64_t> weights) {
  const schedule::AxisTree tree = schedule::replay(domain, "a value");
  weights.resize(tree.extents.size(), 0);
  for (const schedule::Step& step : tree.steps) {
    const auto* split = std::get_if<schedule::SplitStep>(&step);
    if (split == nullptr || weights[split->input] == 0) continue;
    weights[split->inner] = weights[split->input];
    weights[split->outer] = weights[split->input] * tree.extents[split->inner];
  }
  std::vector<int64_t> steps;
  for (int node : tree.loop) steps.push_back(weights[node]);
  return steps;
}

// One weight for each axis of the value, as weights of its nodes.
std::vector<int64_t> of_nodes(const Fusion& segment, const schedule::Domain& domain, ValueId value,
                              const std::vector<int64_t>& of_axes) {
  const std::vector<int> nodes = schedule::axis_nodes(segment, domain, value);
  std::vector<int64_t> weights(schedule::replay(domain, "a value").extents.size(), 0);
  for (size_t a = 0; a < nodes.size(); ++a) weights[nodes[a]] = of_axes[a];
  return weights;
}

std::vector<Access> find_accesses(const Fusion& segment, const schedule::Schedule& aligned) {
  std::vector<bool> is_input(segment.values.size(), false);
  for (ValueId id : segment.inputs) is_input[id] = true;
  std::vector<Access> accesses;
  using Reads = std::tuple<ValueId, std::vector<int64_t>, int64_t, std::vector<int64_t>>;
  std::map<Reads, size_t> seen;  // one load serves every use
  auto add = [&](size_t number, size_t operand, const schedule::Domain& domain, const schedule::Reading& from) {
    const ValueId id = segment.ops[number].inputs[operand];
    std::vector<int64_t> steps = along_loops(domain, from.weights);
    std::vector<int64_t> edges(from.weights.size(), 0);
    for (const auto& [axis, begin, end] : from.ranges) edges[axis] = std::gcd(begin, end == kNoEnd ? 0 : end);
    edges = along_loops(domain, std::move(edges));
    const auto [entry, fresh] = seen.emplace(Reads{id, steps, from.offset, edges}, accesses.size());
    if (fresh) {
      accesses.push_back({std::move(steps), size_of(segment.values[id].dtype), from.offset, std::move(edges)});
    }
    // What an index adds must be aligned, too.
    for (const auto& index : from.indices) {
      accesses[entry->second].offset = std::gcd(accesses[entry->second].offset, index.weight);
    }
    const ir::OpKind kind = segment.ops[number].kind;
    if (operand > 0 || !ir::reads_memory(kind)) accesses[entry->second].uses.emplace_back(number, operand);
    if (kind == ir::OpKind::kSlice || kind == ir::OpKind::kPad) accesses[entry->second].slices.push_back(number);
  };
  for (size_t number = 0; number < segment.ops.size(); ++number) {
    const Op& op = segment.ops[number];
    const schedule::Domain& domain = aligned.domains[op.output];
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (!is_input[op.inputs[i]]) continue;
      add(number, i, domain, schedule::reading(segment, op, i));
    }
    if (op.kind == ir::OpKind::kIota) {
      std::vector<int64_t> weights(domain.logical.size(), 0);
      weights[std::get<ir::Dims>(op.attribute).dims[0]] = 1;
      accesses.push_back({along_loops(domain, weights), 0});
    }
  }
  for (ValueId id : segment.outputs) {
    const schedule::Writing to = schedule::writing(segment, id);
    const schedule::Domain& domain = aligned.domains[id];
    accesses.push_back(
        {along_loops(domain, of_nodes(segment, domain, id, to.weights)), size_of(segment.values[id].dtype), to.offset});
    if (is_input[id]) accesses.push_back(accesses.back());
    accesses.back().stores = true;
  }
  return accesses;
}

// Axis k and k + 1 are one loop when each access goes on from the end of the inner one to the next outer one.
bool continues(const std::vector<Access>& accesses, const std::vector<int64_t>& extents, size_t k) {
  if (extents[k] == 1 || extents[k + 1] == 1) return true;
  return std::all_of(accesses.begin(), accesses.end(), [&](const Access& access) {
    const bool whole = access.edges.empty() || (access.edges[k] == 0 && access.edges[k + 1] == 0);
    return whole && access.steps[k] == access.steps[k + 1] * extents[k + 1];
  });
}

// Fills in which loops reductions fold, and which values are computed along those.
void find_folds(const Fusion& segment, const schedule::Schedule& aligned, Traffic& result) {
  bool whole = false;  // whether some reduction is not in parts
  for (const schedule::Domain& domain : aligned.domains) {
    result.scans = result.scans || domain.scanned >= 0;
    whole = whole || ((domain.scanned >= 0 || !domain.reduced.empty()) && !domain.in_parts);
  }
  result.folded.assign(result.extents.size(), false);
  result.across = result.folded;
  result.runs.assign(result.extents.size(), true);
  for (const Op& op : segment.ops) {
    const schedule::Domain& domain = aligned.domains[op.output];
    const schedule::AxisTree tree = schedule::replay(domain, "a value");
    std::vector<bool>& loops = whole && domain.in_parts ? result.across : result.folded;
    for (size_t i = 0; i < tree.loop.size(); ++i) {
      loops[i] = loops[i] || tree.reduced[tree.loop[i]] || tree.scanned[tree.loop[i]] != 0;
      if (std::holds_alternative<ir::Reduce>(op.attribute))
        result.runs[i] = result.runs[i] && tree.reduced[tree.loop[i]];
    }
  }
  bool runs = false;
  for (size_t i = 0; i < result.extents.size(); ++i) {
    runs = runs || (result.extents[i] > 1 && result.folded[i] && !result.runs[i]);
  }
  if (!runs || result.scans || contains(result.across, true)) result.runs.assign(result.extents.size(), false);
  result.in_rows.assign(segment.values.size(), false);
  for (const Op& op : segment.ops) {
    const schedule::AxisTree tree = schedule::replay(aligned.domains[op.output], "a value");
    for (size_t i = 0; i < tree.loop.size(); ++i) {
      const int node = tree.loop[i];
      if (result.folded[i] && !tree.inserted[node] && !tree.reduced[node]) result.in_rows[op.output] = true;
    }
  }
}

}  // namespace

Traffic traffic(const Fusion& segment, ValueId reference) {
  schedule::Scheduler scheduler(segment);
  scheduler.transform_like(reference);
  Traffic result;
  result.accesses = find_accesses(segment, scheduler.schedule());
  for (const schedule::LoopAxis& axis : scheduler.schedule().domains[reference].loop) {
    result.extents.push_back(axis.extent);
  }
  find_folds(segment, scheduler.schedule(), result);
  result.collapse.assign(result.extents.size(), 1);
  for (size_t k = result.extents.size(); k-- > 1;) {
    const bool same_folds = result.folded[k - 1] == result.folded[k] && result.across[k - 1] == result.across[k] &&
                            result.runs[k - 1] == result.runs[k];
    if (!same_folds || !continues(result.accesses, result.extents, k - 1)) continue;
    const size_t gone = result.extents[k] != 1 ? k - 1 : k;
    for (Access& access : result.accesses) {
      access.steps.erase(access.steps.begin() + static_cast<std::ptrdiff_t>(gone));
      if (!access.edges.empty()) access.edges.erase(access.edges.begin() + static_cast<std::ptrdiff_t>(gone));
    }
    auto erase = [&](auto& list) { list.erase(list.begin() + static_cast<std::ptrdiff_t>(k)); };
    result.extents[k - 1] *= result.extents[k];
    result.collapse[k - 1] += result.collapse[k];
    erase(result.extents);
    erase(result.collapse);
    erase(result.folded);
    erase(result.across);
    erase(result.runs);
  }

  double bytes = 0;
  for (const Access& access : result.accesses) {
    const bool repeats = std::all_of(access.steps.begin(), access.steps.end(), [](int64_t step) { return step == 0; });
    if (!repeats) bytes += access.bytes;
  }
  result.cost_per_element = bytes / kBytesOfUnit;
  for (const ir::Op& op : segment.ops) {
    const ir::OpInfo& info = ir::info(op.kind);
    if (info.op_class != ir::OpClass::kPointwise && info.op_class != ir::OpClass::kScan) continue;
    result.cost_per_element += info.operands == ir::OperandTypes::kFloating ? kFloatingOp : kSimpleOp;
  }
  for (const ir::Value& value : segment.values) {
    result.widest_lane = std::max<int64_t>(result.widest_lane, size_of(compute_dtype(value.dtype)));
  }
  return result;
}

}  // namespace jf::plan
