#include "plan/grouped.h"

#include <utility>

#include "base/error.h"

namespace jf::plan {

static_assert(static_cast<int>(ir::GroupedWeights::kInt4By64) == static_cast<int>(grouped::Weights::kInt4By64));

grouped::Problem grouped_problem(const ir::Fusion& segment) {
  JF_CHECK(segment.ops.size() == 1 && segment.ops[0].kind == ir::OpKind::kGroupedMatmul, segment.name,
           " is not one grouped product");
  const ir::Op& op = segment.ops[0];
  const auto& attribute = std::get<ir::Grouped>(op.attribute);
  const ir::Value &lhs = segment.values[op.inputs[0]], &rhs = segment.values[op.inputs[1]];
  const std::vector<int64_t> a = ir::shape(lhs), out = ir::shape(segment.values[op.output]);
  grouped::Problem problem;
  problem.groups = segment.values[op.inputs[2]].axes[0].extent;
  problem.m = a[0];
  problem.k = a.back();
  problem.n = out.back();
  problem.transpose_rhs = attribute.transpose_rhs;
  problem.leaves_padding = attribute.leaves_padding;
  const bool scaled = attribute.scales != ir::GroupedScales::kNone;
  problem.has_starts = op.inputs.size() == (scaled ? 6 : attribute.weights != ir::GroupedWeights::kNumbers ? 5 : 4);
  problem.lhs = lhs.dtype;
  problem.rhs = rhs.dtype;
  problem.out = segment.values[op.output].dtype;
  problem.weights = static_cast<grouped::Weights>(attribute.weights);
  switch (attribute.scales) {
    case ir::GroupedScales::kNone: break;
    case ir::GroupedScales::kRows: problem.scales = grouped::Scales::kRows; break;
    case ir::GroupedScales::kBlocks: problem.scales = grouped::Scales::kBlocks; break;
  }
  switch (attribute.mode) {
    case ir::GroupedMode::kRows: problem.mode = grouped::Mode::kRows; break;
    case ir::GroupedMode::kContraction:
      problem.mode = grouped::Mode::kContraction;
      if (scaled) std::swap(problem.m, problem.k);  // operands are transposed
      break;
    case ir::GroupedMode::kBatch:
      problem.mode = grouped::Mode::kBatch;
      problem.rows = a[1];
      break;
  }
  return problem;
}

}  // namespace jf::plan
