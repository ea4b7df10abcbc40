#include "plan/strategies.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/lists.h"
#include "ir/results.h"
#include "ir/unused.h"
#include "plan/extract.h"
#include "plan/one_kernel.h"
#include "plan/parameters.h"
#include "plan/pointwise.h"
#include "plan/reduction.h"
#include "plan/segment.h"
#include "plan/transpose_cuda.h"
#include "schedule/edit.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::OpKind;
using ir::ValueId;

// Whether a strategy can make a fusion as one kernel, and the kernel's fusion: its values in place, each computed once
// for every place of the loops at which it is needed.

void check_ops(const Fusion& fusion, std::string_view strategy) {
  bool folds = false;
  for (const ir::Op& op : fusion.ops) {
    const std::string& value = fusion.values[op.output].name;
    JF_REQUIRE(op.kind != OpKind::kGroupedMatmul, "[", strategy, "] ", value,
               " is a grouped product, which has kernels of its own");
    JF_REQUIRE(ir::ragged_axis(fusion.values[op.output]) < 0, "[", strategy, "] ", value,
               " is nested; see propose, which plans kernels for its rows, or schedule it by hand");
    const ir::Reduce* reduce = std::get_if<ir::Reduce>(&op.attribute);
    if (const auto* scan = std::get_if<ir::Scan>(&op.attribute)) {
      folds = true;
      JF_REQUIRE(strategy == "reduction", "[", strategy, "] ", value, " is scanned along an axis; use reduction");
      JF_REQUIRE(fusion.values[op.output].axes[scan->axis].extent > 1, "[reduction] ", value,
                 " is scanned along an axis of fewer than two elements; leave the scan out");
    }
    if (reduce == nullptr) continue;
    folds = true;
    JF_REQUIRE(strategy == "reduction", "[", strategy, "] ", value, " folds axes; use reduction");
    for (int64_t dim : reduce->dims) {
      JF_REQUIRE(fusion.values[op.inputs[0]].axes[dim].extent > 1, "[reduction] ", value, " folds axis ", dim, " of ",
                 fusion.values[op.inputs[0]].name, ", which has fewer than two elements; squeeze it");
    }
  }
  JF_REQUIRE(folds || strategy != "reduction", "[reduction] ", fusion.name, " folds no axis; use pointwise");
  for (ValueId id : fusion.outputs) {
    JF_REQUIRE(ir::elements(fusion.values[id]) > 0, "[", strategy, "] ", fusion.values[id].name, " has no elements");
  }
}

Fusion one_kernel(const Fusion& given, std::string_view strategy, const Target& target) {
  const std::vector<std::string>& all = strategies();
  JF_REQUIRE(contains(all, strategy), "[schedule] unknown strategy '", strategy,
             "'; expected pointwise, transpose or reduction");
  JF_REQUIRE(strategy != "transpose" || target.platform == Platform::kCuda,
             "[transpose] it goes through the shared memory of CUDA devices; use pointwise");
  const Fusion fusion = as_one_kernel(ir::without_unused(given), strategy);
  check_ops(fusion, strategy);
  const std::vector<Draft> drafts = draft_segments(fusion, target);
  std::string reasons;
  for (const Draft& draft : drafts) reasons += cat(reasons.empty() ? "" : "; ", draft.reason);
  JF_REQUIRE(drafts.size() == 1, "[", strategy, "] ", fusion.name, " takes ", drafts.size(), " kernels (", reasons,
             "); schedule one fusion for each, or see propose");
  const Segment segment = extract_fused(fusion, drafts[0], fusion.name);
  Fusion kernel = in_order(fusion, segment, segment.fusion);
  ir::number_as_text(kernel);
  return kernel;
}

CudaTranspose proposed_transpose(const Fusion& kernel, const Target& target) {
  const std::optional<CudaTranspose> proposed = propose_transpose(kernel, target);
  JF_REQUIRE(proposed.has_value(), "[transpose] ", kernel.name, " reads no long input along another axis than it ",
             "writes whose tiles fit shared memory; use pointwise");
  return *proposed;
}

}  // namespace

const std::vector<std::string>& strategies() {
  static const std::vector<std::string> all = {"transpose", "pointwise", "reduction"};
  return all;
}

Fusion in_order(const Fusion& whole, const Segment& segment, Fusion kernel) {
  auto find = [](const std::vector<ValueId>& ids, ValueId id) { return std::find(ids.begin(), ids.end(), id); };
  const std::vector<ValueId> inputs = std::move(kernel.inputs), outputs = std::move(kernel.outputs);
  kernel.inputs.clear();
  for (ValueId id : whole.inputs) {
    const auto found = find(segment.inputs, id);
    if (found != segment.inputs.end()) {
      kernel.inputs.push_back(inputs[found - segment.inputs.begin()]);
      continue;
    }
    kernel.inputs.push_back(static_cast<ValueId>(kernel.values.size()));  // nothing reads it
    kernel.values.push_back(whole.values[id]);
  }
  kernel.outputs.clear();
  for (ValueId id : ir::parts_of_outputs(whole)) {
    const auto found = find(segment.outputs, id);
    JF_CHECK(found != segment.outputs.end(), whole.values[id].name, " is stored by no segment");
    kernel.outputs.push_back(outputs[found - segment.outputs.begin()]);
  }
  return kernel;
}

Parameters parameters_of(const Fusion& fusion, std::string_view strategy, const Target& target) {
  const Fusion kernel = one_kernel(fusion, strategy, target);
  if (strategy == "transpose") return fields_of(proposed_transpose(kernel, target));
  if (strategy == "pointwise") return fields_of(propose(kernel, target));
  return fields_of(propose_reduction(kernel, target));
}

StrategyKernel schedule_by(const Fusion& fusion, std::string_view strategy, const Target& target,
                           const Parameters& given) {
  Fusion kernel = one_kernel(fusion, strategy, target);
  StrategyKernel result;
  if (strategy == "transpose") {
    TransposeKernel made = transpose_kernel(kernel, edited(proposed_transpose(kernel, target), given, target));
    result = {std::move(made.fusion), std::move(made.schedule)};
  } else if (strategy == "pointwise") {
    schedule::Schedule made = pointwise_schedule(kernel, edited(propose(kernel, target), given, target));
    result = {std::move(kernel), std::move(made)};
  } else {
    ReductionKernel made = reduction_kernel(kernel, edited(propose_reduction(kernel, target), given, kernel, target));
    result = {std::move(made.fusion), std::move(made.schedule)};
  }
  schedule::number_as_text(result.fusion, result.schedule);
  return result;
}

}  // namespace jf::plan
