#include "plan/one_kernel.h"

#include <algorithm>

#include "base/error.h"
#include "base/lists.h"
#include "base/target.h"
#include "ir/results.h"
#include "ir/text.h"
#include "ir/unused.h"
#include "plan/merged_axes.h"
#include "plan/plan.h"
#include "plan/reshapes.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;

// Whether something has to be changed: what is nested has no such ops, and products have kernels by hand.
bool moves_computed(const Fusion& fusion) {
  bool moves = false;
  for (const Op& op : fusion.ops) {
    if (op.kind == OpKind::kGroupedMatmul || ir::ragged_axis(fusion.values[op.output]) >= 0) return false;
    const bool reshapes =
        op.kind == OpKind::kReshape && (!contains(fusion.inputs, op.inputs[0]) || contains(fusion.outputs, op.output));
    moves = moves || reshapes || op.kind == OpKind::kConcat;
  }
  return moves;
}

// The kernels that the compiler makes, with what each stores.
std::string kernels_of(const Fusion& fusion) {
  const Plan plan = plan::plan(fusion, host_target());
  std::string text;
  for (const Segment& segment : plan.segments) {
    std::string stored;
    for (ir::ValueId id : segment.fusion.outputs) {
      stored += cat(stored.empty() ? "" : ", ", ir::print_type(segment.fusion.values[id]));
    }
    text += cat(text.empty() ? "" : ", ", segment.fusion.name, " (stores ", stored, ")");
  }
  return cat(plan.segments.size(), plan.segments.size() == 1 ? " kernel, " : " kernels, ", text);
}

}  // namespace

Fusion as_one_kernel(const Fusion& given, std::string_view call) {
  if (!moves_computed(given)) return given;
  const Fusion used = ir::without_unused(given);
  const bool reshapes =
      std::any_of(used.ops.begin(), used.ops.end(), [](const Op& op) { return op.kind == OpKind::kReshape; });
  Fusion fusion = ir::with_parts_as_outputs(reshapes ? with_merged_axes(without_reshapes(used)) : used);
  for (const Op& op : fusion.ops) {
    const bool read_elsewhere = op.kind == OpKind::kReshape && !contains(fusion.inputs, op.inputs[0]);
    JF_REQUIRE(!read_elsewhere && op.kind != OpKind::kConcat, "[", call, "] ", given.name, " is no single kernel: it ",
               op.kind == OpKind::kConcat ? "reads an array that it puts together"
                                          : "reads what it reshapes in another order than it computes it in",
               ", which is stored before. The compiler makes ", kernels_of(given),
               "; make a function of what each of them computes, and schedule that");
  }
  return fusion;
}

}  // namespace jf::plan
