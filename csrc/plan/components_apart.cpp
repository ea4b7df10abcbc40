#include "plan/components_apart.h"

#include <cstddef>
#include <variant>

namespace jf::plan {

using ir::Op;
using ir::OpKind;
using ir::ValueId;

bool share_no_rows(const std::vector<const Op*>& defined_by, const ir::Fusion& whole, ValueId extents, int64_t rows) {
  const auto defined = [&](ValueId id, OpKind kind) {
    const Op* op = id < 0 ? nullptr : defined_by[id];
    return op != nullptr && op->kind == kind ? op : nullptr;
  };
  const auto of = [](const Op* op, size_t input) { return op == nullptr ? -1 : op->inputs[input]; };
  const Op* present = defined(extents, OpKind::kMin);
  const ValueId sizes = of(present, 0);
  const Op* room = defined(of(present, 1), OpKind::kSub);
  const Op* all = defined(of(defined(of(room, 0), OpKind::kBroadcast), 0), OpKind::kConstant);
  const Op* starts = defined(of(defined(of(room, 1), OpKind::kMin), 0), OpKind::kSub);
  const Op* ends = defined(of(starts, 0), OpKind::kScanSum);
  if (all == nullptr || ends == nullptr || starts->inputs[1] != sizes || ends->inputs[0] != sizes) return false;
  const auto* most = std::get_if<int64_t>(&std::get<ir::Constant>(all->attribute).value);
  const auto& scan = std::get<ir::Scan>(ends->attribute);
  const bool last = scan.axis == std::ssize(whole.values[ends->output].axes) - 1;
  return last && !scan.reverse && scan.parts == 0 && most != nullptr && *most <= rows;
}

}  // namespace jf::plan
