#include "host/group_ends.h"

namespace jf::host {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::ValueId;

// The other operand of an op of that kind on the value and a number; the value itself where it is none.
ValueId without(const Fusion& fusion, OpKind kind, int64_t number, ValueId value) {
  const Op* op = definition(fusion, value);
  if (op == nullptr || op->kind != kind) return value;
  for (size_t i : {0, 1}) {
    if (is_number(fusion, op->inputs[i], number)) return op->inputs[1 - i];
  }
  return value;
}

// Sums that min(sum, m) bounds, or m from the first on that has wrapped: max(.., where(sum < 0, m, min(sum, m))).
ValueId without_bound(const Fusion& fusion, int64_t m, ValueId value) {
  const Op* most = definition(fusion, value);
  if (most == nullptr || most->kind != OpKind::kScanMax) return without(fusion, OpKind::kMin, m, value);
  const auto& scan = std::get<ir::Scan>(most->attribute);
  const Op* select = definition(fusion, most->inputs[0]);
  if (scan.reverse || scan.parts != 0 || select == nullptr || select->kind != OpKind::kSelect) return value;
  const ValueId sum = without(fusion, OpKind::kMin, m, select->inputs[2]);
  const Op* wrapped = definition(fusion, select->inputs[0]);
  const bool fits = wrapped != nullptr && wrapped->kind == OpKind::kLt && wrapped->inputs[0] == sum &&
                    is_number(fusion, wrapped->inputs[1], 0) && is_number(fusion, select->inputs[1], m);
  return fits ? sum : value;
}

}  // namespace

bool is_group_ends(const Fusion& fusion, ValueId value, ValueId extents, int64_t m) {
  if (fusion.values[value].axes.size() != 1) return false;
  ValueId bounded = without_bound(fusion, m, value);
  const Op* sum = definition(fusion, bounded);
  if (sum != nullptr && sum->kind == OpKind::kScanSum) {
    const auto& scan = std::get<ir::Scan>(sum->attribute);
    if (scan.reverse || scan.parts != 0) return false;
    bounded = sum->inputs[0];
  } else if (fusion.values[value].axes[0].extent != 1) {  // one group ends with its rows
    return false;
  }
  return without(fusion, OpKind::kMax, 0, without(fusion, OpKind::kMin, m, bounded)) == extents;
}

}  // namespace jf::host
