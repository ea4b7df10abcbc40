#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "ir/build.h"
#include "ir/text.h"
#include "ir/unused.h"
#include "plan/after_folds.h"
#include "plan/argument_keys.h"
#include "plan/cancelled_transposes.h"
#include "plan/extract.h"
#include "plan/joined_folds.h"
#include "plan/linear_sums.h"
#include "plan/merged_axes.h"
#include "plan/pair_folds.h"
#include "plan/ragged_parts.h"
#include "plan/reshapes.h"
#include "plan/segment.h"
#include "plan/two_stages.h"

namespace jf::plan {
namespace {

std::string_view name(Strategy strategy) {
  switch (strategy) {
    case Strategy::kPointwise: return "pointwise";
    case Strategy::kReduction: return "reduction";
    case Strategy::kGrouped: return "grouped";
    case Strategy::kNested: return "nested";
    case Strategy::kEmpty: return "empty";
  }
  JF_CHECK(false, "strategy ", static_cast<int>(strategy));
}

// A segment reads what earlier ones stored; the order of drafts must make it so. Adds to the reasons what comes from
// where.
void link(const ir::Fusion& fusion, Plan& plan) {
  constexpr int kFromOutside = -1;
  std::map<ir::ValueId, int> stored_by;
  for (ir::ValueId id : fusion.inputs) stored_by[id] = kFromOutside;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    Segment& segment = plan.segments[i];
    for (ir::ValueId id : std::set<ir::ValueId>(segment.inputs.begin(), segment.inputs.end())) {
      const std::string& name = fusion.values[id].name;
      const auto from = stored_by.find(id);
      JF_CHECK(from != stored_by.end(), "segment ", i, " reads ", name, " before it is stored\n", ir::print(fusion));
      if (from->second != kFromOutside) segment.reason += cat("; reads ", name, " of segment ", from->second);
    }
    for (ir::ValueId id : segment.outputs) stored_by.emplace(id, static_cast<int>(i));
    for (const ir::Op& op : plan.fusion.ops) {
      if (op.kind != ir::OpKind::kConcat) continue;
      const bool whole = std::all_of(op.inputs.begin(), op.inputs.end(),
                                     [&](ir::ValueId placed) { return stored_by.count(placed) > 0; });
      if (whole) stored_by.emplace(op.output, static_cast<int>(i));
    }
  }
}

Strategy strategy(DraftKind kind) {
  switch (kind) {
    case DraftKind::kPointwise: return Strategy::kPointwise;
    case DraftKind::kReduction: return Strategy::kReduction;
    case DraftKind::kGrouped: return Strategy::kGrouped;
    case DraftKind::kNested: return Strategy::kNested;
  }
  JF_CHECK(false, "draft kind ", static_cast<int>(kind));
}

Segment extract(const ir::Fusion& whole, const Draft& draft, const std::string& name) {
  if (draft.kind == DraftKind::kGrouped) return extract_grouped(whole, draft, name);
  if (draft.kind == DraftKind::kNested) return extract_nested(whole, draft, name);
  return extract_fused(whole, draft, name);
}

// What parts of a scan begin with is known along the parts alone, so only what joins the two can read it. The compiler
// makes it so; a person who writes the text may not.
void check_spreads(const ir::Fusion& fusion) {
  std::vector<const ir::Op*> defined_by(fusion.values.size(), nullptr);
  for (const ir::Op& op : fusion.ops) {
    for (const ir::ValueId id : op.inputs) {
      const ir::Op* spread = defined_by[id];
      if (spread == nullptr || spread->kind != ir::OpKind::kSpread) continue;
      const ir::ValueId begins = spread->inputs[0];
      const int64_t axis = std::get<ir::Dims>(spread->attribute).dims[0];
      const int64_t parts = fusion.values[begins].axes[axis].extent;
      const bool joins = std::any_of(op.inputs.begin(), op.inputs.end(), [&](ir::ValueId other) {
        const ir::Op* made = defined_by[other];
        const auto* scan = made == nullptr ? nullptr : std::get_if<ir::Scan>(&made->attribute);
        return scan != nullptr && scan->axis == axis && scan->parts == parts && made > defined_by[begins];
      });
      JF_REQUIRE(joins && ir::info(op.kind).op_class == ir::OpClass::kPointwise, "[spread] ", fusion.values[id].name,
                 " is what ", parts, " parts of axis ", axis,
                 " begin with; only a pointwise op on it and on a scan in ", "as many parts, written after ",
                 fusion.values[begins].name, ", can read it, not the ", ir::info(op.kind).name, " that makes ",
                 fusion.values[op.output].name);
    }
    defined_by[op.output] = &op;
  }
}

}  // namespace

Plan plan(const ir::Fusion& given, const Target& target) {
  const ir::Fusion used = ir::without_unused(given);
  // CPUs store pieces as fast, and compute none twice.
  const bool chooses = target.platform == Platform::kCuda && !has_nested(used);
  const ir::Fusion fusion = chooses ? with_cancelled_transposes(with_folds_of_pairs_written_out(
                                          ir::Builder::with_chosen_pieces(with_argument_keys(used))))
                                    : used;
  check_spreads(fusion);
  // Cutting axes knows nothing of ragged ones; beside those a reshape reads memory.
  const ir::Fusion cut = has_nested(fusion) ? in_ragged_parts(fusion) : with_merged_axes(without_reshapes(fusion));
  const ir::Fusion linear = with_linear_sums(chooses ? with_joined_folds(cut) : cut);
  Plan result{in_two_stages(linear, target), {}};
  const ir::Fusion& whole = result.fusion;
  std::vector<Draft> drafts = draft_segments(whole, target);
  if (has_parts(whole) && target.platform == Platform::kCuda) {
    const std::vector<Draft> others = draft_segments(whole, other_cuda_target(target));
    result.differs = !std::equal(drafts.begin(), drafts.end(), others.begin(), others.end(),
                                 [](const Draft& a, const Draft& b) { return a.ops == b.ops; });
  }
  if (target.platform == Platform::kCuda && !result.differs) {
    const ir::Fusion other = in_two_stages(linear, other_cuda_target(target));
    result.differs = ir::print(other) != ir::print(whole);
  }
  const std::vector<ir::ValueId> memory = memory_of(whole);
  for (const Draft& draft : with_what_follows_folds(whole, std::move(drafts))) {
    std::string segment_name = cat(whole.name, "_", result.segments.size());
    Segment segment = extract(whole, draft, segment_name);
    for (ir::ValueId& id : segment.inputs) id = memory[id];
    segment.strategy = strategy(draft.kind);
    if (ir::elements(whole.values[draft.outputs.front()]) == 0) segment.strategy = Strategy::kEmpty;
    segment.reason = draft.reason;
    result.segments.push_back(std::move(segment));
  }
  link(whole, result);
  return result;
}

std::string print(const Plan& plan) {
  std::string text;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    text += cat("segment ", i, " ", name(segment.strategy), ": ", segment.reason, "\n", ir::print(segment.fusion));
  }
  return text;
}

}  // namespace jf::plan
