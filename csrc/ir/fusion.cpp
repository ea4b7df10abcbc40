#include "ir/fusion.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/error.h"

namespace jf::ir {
namespace {

constexpr auto kOps = std::to_array<OpInfo>({
#define JF_OP(kind, text, arity, op_class, result, operands) \
  OpInfo{OpKind::kind, #text, arity, OpClass::op_class, ResultRule::result, OperandTypes::operands},
#include "ir/ops.def"
});

}  // namespace

const OpInfo& info(OpKind kind) { return kOps[static_cast<size_t>(kind)]; }

namespace {

constexpr std::string_view kWeightNames[] = {"numbers", "mxfp4", "nvfp4", "int4x32", "int4x64"};

}  // namespace

std::string_view name(GroupedWeights weights) { return kWeightNames[static_cast<size_t>(weights)]; }

GroupedWeights parse_weights(std::string_view name) {
  for (size_t i = 1; i < std::size(kWeightNames); ++i) {
    if (name == kWeightNames[i]) return static_cast<GroupedWeights>(i);
  }
  throw UserError(cat("[grouped_matmul] weights must be mxfp4, nvfp4, int4x32 or int4x64, got '", name, "'"));
}

std::span<const OpInfo> ops() { return kOps; }

const OpInfo* find_op(std::string_view name) {
  for (const OpInfo& op : kOps) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

bool is_recurrence(OpKind scan) { return scan == OpKind::kScanLinear || scan == OpKind::kScanResets; }

OpKind fold_of(OpKind fold) {
  switch (fold) {
    case OpKind::kReduceSum:
    case OpKind::kScanSum:
    case OpKind::kScanLinear:
    case OpKind::kScanResets: return OpKind::kAdd;
    case OpKind::kReduceProd:
    case OpKind::kScanProd: return OpKind::kMul;
    case OpKind::kReduceMax:
    case OpKind::kScanMax: return OpKind::kMax;
    case OpKind::kReduceMin:
    case OpKind::kScanMin: return OpKind::kMin;
    case OpKind::kScanLogSumExp: return OpKind::kLogAddExp;
    case OpKind::kReduceAnd: return OpKind::kAnd;
    case OpKind::kReduceOr: return OpKind::kOr;
    case OpKind::kReduceXor: return OpKind::kXor;
    default: throw InternalError(__FILE__, __LINE__, "a reduction or scan", std::string(info(fold).name));
  }
}

bool reads_memory(OpKind kind) {
  return kind == OpKind::kSlice || kind == OpKind::kPad || kind == OpKind::kReshape || kind == OpKind::kTake ||
         kind == OpKind::kSearch || kind == OpKind::kSpread || kind == OpKind::kPartition;
}

bool moves_float8(OpKind kind) {
  const OpClass op_class = info(kind).op_class;
  return kind == OpKind::kConvert || kind == OpKind::kBitcast || kind == OpKind::kSelect ||
         op_class == OpClass::kConstant || op_class == OpClass::kView || op_class == OpClass::kConcat;
}

bool has_nest_operands(OpKind kind) {
  return kind == OpKind::kPartition || kind == OpKind::kStretch || kind == OpKind::kCombine;
}

bool Constant::operator==(const Constant& other) const {
  if (value.index() != other.value.index()) return false;
  if (const double* a = std::get_if<double>(&value)) {
    return std::bit_cast<uint64_t>(*a) == std::bit_cast<uint64_t>(std::get<double>(other.value));
  }
  return std::get<int64_t>(value) == std::get<int64_t>(other.value);
}

Constant zero_of(DType dtype) {
  if (is_float(dtype)) return {0.0};
  return {int64_t{0}};
}

Constant identity_of(OpKind reduce, DType dtype) {
  using Limits = std::numeric_limits<double>;
  const bool is_max = reduce == OpKind::kReduceMax;
  if (is_max || reduce == OpKind::kReduceMin) {
    if (is_float(dtype)) return {is_max ? -Limits::infinity() : Limits::infinity()};
    const bool is_unsigned = dtype == DType::kPred || dtype == DType::kU8 || dtype == DType::kU16 ||
                             dtype == DType::kU32 || dtype == DType::kU64;
    if (is_unsigned && is_max) return {int64_t{0}};
    if (dtype == DType::kPred) return {int64_t{1}};
    const int bits = static_cast<int>(8 * size_of(dtype));
    if (is_unsigned) return {bits == 64 ? int64_t{-1} : (int64_t{1} << bits) - 1};
    const int64_t highest = std::numeric_limits<int64_t>::max() >> (64 - bits);
    return {is_max ? -highest - 1 : highest};
  }
  if (reduce == OpKind::kReduceAnd) return {int64_t{dtype == DType::kPred ? 1 : -1}};
  const int64_t number = reduce == OpKind::kReduceProd ? 1 : 0;
  if (is_float(dtype)) return {static_cast<double>(number)};
  return {number};
}

int ragged_axis(const Value& value) {
  for (size_t i = 0; i < value.axes.size(); ++i) {
    if (value.axes[i].extents >= 0) return static_cast<int>(i);
  }
  return -1;
}

std::vector<int> ragged_axes(const Value& value) {
  std::vector<int> axes;
  for (size_t i = 0; i < value.axes.size(); ++i) {
    if (value.axes[i].extents >= 0) axes.push_back(static_cast<int>(i));
  }
  return axes;
}

int64_t elements(const Value& value) {
  int64_t count = 1;
  for (const Axis& axis : value.axes) count *= axis.extent;
  return count;
}

const Op* definition(const Fusion& fusion, ValueId value) {
  const auto found =
      std::find_if(fusion.ops.begin(), fusion.ops.end(), [&](const Op& op) { return op.output == value; });
  return found == fusion.ops.end() ? nullptr : &*found;
}
bool is_number(const Fusion& fusion, ValueId value, int64_t number) {
  const Op* op = definition(fusion, value);
  if (op != nullptr && op->kind == OpKind::kBroadcast) op = definition(fusion, op->inputs[0]);
  const auto* constant = op == nullptr ? nullptr : std::get_if<ir::Constant>(&op->attribute);
  return constant != nullptr && constant->value == std::variant<int64_t, double>(number);
}

std::vector<int64_t> shape(const Value& value) {
  std::vector<int64_t> extents;
  for (const Axis& axis : value.axes) extents.push_back(axis.extent);
  return extents;
}

std::vector<Axis> axes_of(std::span<const int64_t> shape) {
  std::vector<Axis> axes;
  for (int64_t extent : shape) axes.push_back({extent});
  return axes;
}

std::vector<ValueId> number_as_text(Fusion& fusion) {
  std::vector<ValueId> renumbered(fusion.values.size(), -1);
  std::vector<Value> values;
  auto place = [&](ValueId& id) {
    renumbered[id] = static_cast<ValueId>(values.size());
    values.push_back(std::move(fusion.values[id]));
    id = renumbered[id];
  };
  for (ValueId& id : fusion.inputs) place(id);
  for (Op& op : fusion.ops) {
    for (ValueId& id : op.inputs) id = renumbered[id];
    place(op.output);
  }
  for (ValueId& id : fusion.outputs) id = renumbered[id];
  for (Value& value : values) {
    for (Axis& axis : value.axes) axis.extents = axis.extents < 0 ? -1 : renumbered[axis.extents];
  }
  fusion.values = std::move(values);
  return renumbered;
}

}  // namespace jf::ir
