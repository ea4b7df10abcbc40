#include "host/group_ends.h"

namespace jf::host {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::ValueId;

bool is_number(const Fusion& fusion, ValueId value, int64_t number) {
  const Op* op = definition(fusion, value);
  if (op != nullptr && op->kind == OpKind::kBroadcast) op = definition(fusion, op->inputs[0]);
  const auto* constant = op == nullptr ? nullptr : std::get_if<ir::Constant>(&op->attribute);
  return constant != nullptr && constant->value == std::variant<int64_t, double>(number);
}

// The other operand of an op of that kind on the value and a number; the value itself where it is none.
ValueId without(const Fusion& fusion, OpKind kind, int64_t number, ValueId value) {
  const Op* op = definition(fusion, value);
  if (op == nullptr || op->kind != kind) return value;
  for (size_t i : {0, 1}) {
    if (is_number(fusion, op->inputs[i], number)) return op->inputs[1 - i];
  }
  return value;
}

}  // namespace

bool is_group_ends(const Fusion& fusion, ValueId value, ValueId extents, int64_t m) {
  if (fusion.values[value].axes.size() != 1) return false;
  ValueId bounded = without(fusion, OpKind::kMin, m, value);
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
