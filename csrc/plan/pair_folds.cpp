#include "plan/pair_folds.h"

#include <algorithm>
#include <set>
#include <vector>

#include "ir/build.h"

namespace jf::plan {
namespace {

using ir::Op;
using ir::OpClass;
using ir::ValueId;

// Elements of a fold, and ops on all of them.
constexpr int64_t kMostFolded = 8, kMostOps = 96;
// Results for each element that is read: those are in the caches.
constexpr int64_t kPairs = 16;

// What a value takes: ops, and the arrays that it is computed from by nothing but pointwise ops and broadcasts.
struct Source {
  bool plain = true;
  int64_t ops = 0;
  std::set<ValueId> arrays = {};
};

}  // namespace

ir::Fusion with_folds_of_pairs_written_out(const ir::Fusion& fusion) {
  std::vector<bool> written_out(fusion.values.size(), false);
  std::vector<Source> sources(fusion.values.size());
  for (ValueId id : fusion.inputs) sources[id].arrays = {id};
  for (const Op& op : fusion.ops) {
    Source& source = sources[op.output];
    for (ValueId id : op.inputs) {
      source.plain = source.plain && sources[id].plain;
      source.ops = std::min(source.ops + sources[id].ops, kMostOps + 1);
      if (source.plain) source.arrays.insert(sources[id].arrays.begin(), sources[id].arrays.end());
    }
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    const OpClass kind = ir::info(op.kind).op_class;
    source.ops += kind == OpClass::kPointwise;
    source.plain = source.plain && ir::ragged_axis(fusion.values[op.output]) < 0;
    if (reduce == nullptr) {
      const bool view = op.kind == ir::OpKind::kBroadcast || op.kind == ir::OpKind::kSqueeze ||
                        op.kind == ir::OpKind::kTranspose || op.kind == ir::OpKind::kSlice;
      source.plain =
          source.plain && (view || kind == OpClass::kPointwise || kind == OpClass::kConstant || kind == OpClass::kIota);
    } else {
      const ir::Value& operand = fusion.values[op.inputs[0]];
      int64_t folded = 1, read = 0;
      for (int64_t dim : reduce->dims) folded = std::min(folded * operand.axes[dim].extent, kMostFolded + 1);
      for (ValueId id : source.arrays) read += ir::elements(fusion.values[id]);
      source.ops = (source.ops + 1) * folded;
      source.plain = source.plain && ir::ragged_axis(operand) < 0 && reduce->parts == 0 && 1 < folded &&
                     folded <= kMostFolded && source.ops <= kMostOps &&
                     kPairs * read <= ir::elements(fusion.values[op.output]);
      written_out[op.output] = source.plain;
    }
    if (!source.plain) source.arrays.clear();
  }
  return ir::Builder::with_folds_written_out(fusion, written_out);
}

}  // namespace jf::plan
