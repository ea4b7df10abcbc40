#include "plan/halves.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "plan/extract.h"
#include "plan/ragged_parts.h"
#include "plan/segment.h"

namespace jf::plan {
namespace {

using ir::Op;
using ir::ValueId;

// What a kernel makes again rather than read it.
bool is_generated(const Op& op) { return op.inputs.empty() || op.kind == ir::OpKind::kBroadcast; }

}  // namespace

std::optional<std::pair<Segment, Segment>> in_halves(const ir::Fusion& segment) {
  std::vector<size_t> computing;
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    if (!is_generated(segment.ops[i])) computing.push_back(i);
  }
  if (computing.size() < 2 || has_nested(segment)) return std::nullopt;
  const size_t end = computing[computing.size() / 2];
  Draft first, second;
  std::set<ValueId> made_first, needed;
  for (size_t i = 0; i < end; ++i) {
    first.ops.push_back(i);
    made_first.insert(segment.ops[i].output);
  }
  for (size_t i = segment.ops.size(); i-- > 0;) {
    const Op& op = segment.ops[i];
    if (i < end && !(is_generated(op) && needed.contains(op.output))) continue;
    second.ops.push_back(i);
    needed.insert(op.inputs.begin(), op.inputs.end());
  }
  std::reverse(second.ops.begin(), second.ops.end());
  std::set<ValueId> made_second;
  for (size_t i : second.ops) made_second.insert(segment.ops[i].output);
  std::set<ValueId> stored;
  for (ValueId id : segment.outputs) {
    if (made_first.contains(id)) {
      stored.insert(id);
    } else {
      second.outputs.push_back(id);
    }
  }
  for (ValueId id : needed) {
    if (made_first.contains(id) && !made_second.contains(id)) stored.insert(id);
  }
  first.outputs.assign(stored.begin(), stored.end());
  if (first.outputs.empty() || second.outputs.empty()) return std::nullopt;
  return std::pair(extract_nested(segment, first, cat(segment.name, "_a")),
                   extract_nested(segment, second, cat(segment.name, "_b")));
}

}  // namespace jf::plan
