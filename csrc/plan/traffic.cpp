#include "plan/traffic.h"

#include <algorithm>
#include <set>

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

// Weights of a value's axes as steps of the loops. Before any transform of the reference, a loop axis of an aligned
// value is one of its own axes or an inserted one.
std::vector<int64_t> along_loops(const schedule::Domain& domain, const std::vector<int64_t>& weights) {
  std::vector<int64_t> steps;
  for (int node : schedule::replay(domain, "a value").loop) {
    steps.push_back(node < static_cast<int>(weights.size()) ? weights[node] : 0);
  }
  return steps;
}

std::vector<Access> find_accesses(const Fusion& segment, const schedule::Schedule& aligned) {
  std::vector<bool> is_input(segment.values.size(), false);
  for (ValueId id : segment.inputs) is_input[id] = true;
  std::vector<Access> accesses;
  std::set<std::pair<ValueId, std::vector<int64_t>>> seen;  // one load serves every use
  auto add = [&](ValueId id, const schedule::Domain& domain, const std::vector<int64_t>& weights) {
    std::vector<int64_t> steps = along_loops(domain, weights);
    if (seen.emplace(id, steps).second) accesses.push_back({std::move(steps), size_of(segment.values[id].dtype)});
  };
  for (const Op& op : segment.ops) {
    const schedule::Domain& domain = aligned.domains[op.output];
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (!is_input[op.inputs[i]]) continue;
      const std::vector<int64_t> strides = graph::strides(ir::shape(segment.values[op.inputs[i]]));
      const std::vector<int> axes = schedule::result_axes(segment, op, i);
      std::vector<int64_t> weights(domain.logical.size(), 0);
      for (size_t a = 0; a < axes.size(); ++a) {
        if (axes[a] >= 0) weights[axes[a]] = strides[a];
      }
      add(op.inputs[i], domain, weights);
    }
    if (op.kind == ir::OpKind::kIota) {
      std::vector<int64_t> weights(domain.logical.size(), 0);
      weights[std::get<ir::Dims>(op.attribute).dims[0]] = 1;
      accesses.push_back({along_loops(domain, weights), 0});
    }
  }
  for (ValueId id : segment.outputs) {
    const std::vector<int64_t> strides = graph::strides(ir::shape(segment.values[id]));
    accesses.push_back({along_loops(aligned.domains[id], strides), size_of(segment.values[id].dtype)});
    if (is_input[id]) accesses.push_back(accesses.back());
  }
  return accesses;
}

// Axis k and k + 1 are one loop when each access goes on from the end of the inner one to the next outer one.
bool continues(const std::vector<Access>& accesses, const std::vector<int64_t>& extents, size_t k) {
  if (extents[k] == 1 || extents[k + 1] == 1) return true;
  return std::all_of(accesses.begin(), accesses.end(),
                     [&](const Access& access) { return access.steps[k] == access.steps[k + 1] * extents[k + 1]; });
}

}  // namespace

Traffic traffic(const Fusion& segment) {
  schedule::Scheduler scheduler(segment);
  scheduler.transform_like(segment.outputs.front());
  Traffic result;
  result.accesses = find_accesses(segment, scheduler.schedule());
  result.extents = ir::shape(segment.values[segment.outputs.front()]);
  result.collapse.assign(result.extents.size(), 1);
  for (size_t k = result.extents.size(); k-- > 1;) {
    if (!continues(result.accesses, result.extents, k - 1)) continue;
    const bool inner_counts = result.extents[k] != 1;
    for (Access& access : result.accesses) access.steps.erase(access.steps.begin() + (inner_counts ? k - 1 : k));
    result.extents[k - 1] *= result.extents[k];
    result.collapse[k - 1] += result.collapse[k];
    result.extents.erase(result.extents.begin() + k);
    result.collapse.erase(result.collapse.begin() + k);
  }

  double bytes = 0;
  for (const Access& access : result.accesses) {
    const bool repeats = std::all_of(access.steps.begin(), access.steps.end(), [](int64_t step) { return step == 0; });
    if (!repeats) bytes += access.bytes;
  }
  result.cost_per_element = bytes / kBytesOfUnit;
  for (const ir::Op& op : segment.ops) {
    const ir::OpInfo& info = ir::info(op.kind);
    if (info.op_class != ir::OpClass::kPointwise) continue;
    result.cost_per_element += info.operands == ir::OperandTypes::kFloating ? kFloatingOp : kSimpleOp;
  }
  for (const ir::Value& value : segment.values) {
    // A pred in lanes is as wide as f32.
    const int64_t lane = value.dtype == DType::kPred ? 4 : size_of(compute_dtype(value.dtype));
    result.widest_lane = std::max(result.widest_lane, lane);
  }
  return result;
}

}  // namespace jf::plan
