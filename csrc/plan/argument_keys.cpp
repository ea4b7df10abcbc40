#include "plan/argument_keys.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/append.h"
#include "ir/unused.h"
#include "ir/verify.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::Value;
using ir::ValueId;

// Rows that blocks keep, so that two folds read them once, too, and compare 32 bits: 4096 of 50304 bf16 took 175 us so,
// by keys 220 (H200). Few long ones would be folded in parts twice.
constexpr int64_t kKeptRow = 16 << 10, kFewLongRows = 64;

// The first place at which `x` is its extreme along an axis.
struct Argument {
  ValueId x, place;  // s32, the index along the axis
  bool largest;
};

class Keys {
 public:
  explicit Keys(const Fusion& whole) : fusion_(whole), defined_by_(whole.values.size(), nullptr) {
    for (const Value& value : whole.values) names_.insert(value.name);
    fusion_.ops.clear();
    for (const Op& op : whole.ops) {
      defined_by_[op.output] = &op;
      const std::optional<Argument> argument = argument_of(op);
      argument ? fold(*argument, op) : fusion_.ops.push_back(op);
      changed_ = changed_ || argument;
    }
  }
  bool changed() const { return changed_; }
  Fusion finish() && {
    Fusion result = ir::without_unused(std::move(fusion_));
    ir::verify(result);
    return result;
  }

 private:
  const Op* made_by(ValueId id, OpKind kind) const {
    const Op* op = static_cast<size_t>(id) < defined_by_.size() ? defined_by_[id] : nullptr;
    return op != nullptr && op->kind == kind ? op : nullptr;
  }
  // min(where(x == extreme or x is NaN, place, extent)), as jaxprs say it.
  std::optional<Argument> argument_of(const Op& op) const {
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    if (op.kind != OpKind::kReduceMin || reduce->dims.size() != 1 || reduce->parts != 0) return std::nullopt;
    const Op* chosen = made_by(op.inputs[0], OpKind::kSelect);
    const Op* place = chosen == nullptr ? nullptr : made_by(chosen->inputs[1], OpKind::kIota);
    if (place == nullptr || fusion_.values[place->output].dtype != DType::kS32 ||
        std::get<ir::Dims>(place->attribute).dims != reduce->dims) {
      return std::nullopt;
    }
    const std::vector<ir::Axis>& axes = fusion_.values[op.inputs[0]].axes;
    const int64_t axis = reduce->dims[0], extent = axes[axis].extent;
    const bool few = ir::elements(fusion_.values[op.output]) < kFewLongRows;
    if (axis + 1 == std::ssize(axes) && (extent <= kKeptRow || !few)) return std::nullopt;
    const Op* other = made_by(chosen->inputs[2], OpKind::kBroadcast);
    const Op* none = other == nullptr ? nullptr : made_by(other->inputs[0], OpKind::kConstant);
    if (none == nullptr || std::get<ir::Constant>(none->attribute) != ir::Constant{extent}) return std::nullopt;

    const Op *either = made_by(chosen->inputs[0], OpKind::kOr),
             *equal = made_by(either == nullptr ? chosen->inputs[0] : either->inputs[0], OpKind::kEq);
    if (equal == nullptr) return std::nullopt;
    const ValueId x = equal->inputs[0];
    const DType dtype = fusion_.values[x].dtype;
    if (dtype == DType::kPred || size_of(compute_dtype(dtype)) > 4) return std::nullopt;
    const Op* unequal = either == nullptr ? nullptr : made_by(either->inputs[1], OpKind::kNe);
    if (is_float(dtype) && (unequal == nullptr || unequal->inputs != std::vector<ValueId>{x, x})) return std::nullopt;
    const Op* along = made_by(equal->inputs[1], OpKind::kBroadcast);
    if (along == nullptr) return std::nullopt;
    const Op *top = made_by(along->inputs[0], OpKind::kReduceMax), *low = made_by(along->inputs[0], OpKind::kReduceMin);
    const Op* extreme = top != nullptr ? top : low;
    if (extreme == nullptr || extreme->inputs[0] != x || std::get<ir::Reduce>(extreme->attribute) != *reduce) {
      return std::nullopt;
    }
    return Argument{x, place->output, top != nullptr};
  }

  // Keys are in the order of elements, and among equals the other way than places.
  void fold(const Argument& argument, const Op& op) {
    label_ = op.label;
    of_ = fusion_.values[argument.x];
    const ValueId key = convert(ordered(argument), DType::kS64);
    const ValueId high = add(OpKind::kShiftLeft, {key, number(DType::kS64, 32)}, DType::kS64);
    const ValueId rest = add(OpKind::kNot, {argument.place}, DType::kS32);
    const ValueId low = convert(add(OpKind::kBitcast, {rest}, DType::kU32), DType::kS64);
    const ValueId keys = add(OpKind::kOr, {high, low}, DType::kS64);
    of_ = fusion_.values[op.output];
    const ValueId best = ir::append(fusion_, OpKind::kReduceMax, {keys}, op.attribute, fresh(DType::kS64), label_);
    const ValueId last = convert(best, DType::kS32);
    fusion_.ops.push_back({OpKind::kNot, {last}, op.output, {}, label_});
  }
  // A s32 that grows with the element, or falls where the smallest is wanted; NaN has the largest.
  ValueId ordered(const Argument& argument) {
    ValueId x = argument.x;
    const DType dtype = of_.dtype;
    if (!is_float(dtype)) {
      x = dtype == DType::kU32 ? add(OpKind::kBitcast, {x}, DType::kS32) : convert(x, DType::kS32);
      if (dtype == DType::kU32) x = add(OpKind::kXor, {x, number(DType::kS32, INT32_MIN)}, DType::kS32);
      return argument.largest ? x : add(OpKind::kNot, {x}, DType::kS32);
    }
    x = convert(x, DType::kF32);
    x = add(OpKind::kAdd, {x, number(DType::kF32, 0)}, DType::kF32);  // -0 is 0
    const ValueId bits = add(OpKind::kBitcast, {x}, DType::kS32);
    const ValueId sign = add(OpKind::kShiftRightArithmetic, {bits, number(DType::kS32, 31)}, DType::kS32);
    const ValueId flips = add(OpKind::kAnd, {sign, number(DType::kS32, INT32_MAX)}, DType::kS32);
    ValueId key = add(OpKind::kXor, {bits, flips}, DType::kS32);
    if (!argument.largest) key = add(OpKind::kNot, {key}, DType::kS32);
    const ValueId nan = add(OpKind::kNe, {x, x}, DType::kPred);
    return add(OpKind::kSelect, {nan, number(DType::kS32, INT32_MAX), key}, DType::kS32);
  }

  Value fresh(DType dtype) {
    std::string name;
    do name = cat("key", next_++);
    while (!names_.insert(name).second);
    return {name, dtype, of_.axes};
  }
  ValueId add(OpKind kind, std::vector<ValueId> inputs, DType dtype) {
    return ir::append(fusion_, kind, std::move(inputs), {}, fresh(dtype), label_);
  }
  ValueId convert(ValueId x, DType dtype) {
    return fusion_.values[x].dtype == dtype ? x : add(OpKind::kConvert, {x}, dtype);
  }
  ValueId number(DType dtype, int64_t value) {
    Value scalar = fresh(dtype);
    scalar.axes = {};
    const ir::Constant constant = is_float(dtype) ? ir::Constant{static_cast<double>(value)} : ir::Constant{value};
    const ValueId one = ir::append(fusion_, OpKind::kConstant, {}, constant, scalar);
    return ir::append(fusion_, OpKind::kBroadcast, {one}, ir::Dims{}, fresh(dtype));
  }

  Fusion fusion_;
  std::vector<const Op*> defined_by_;
  std::set<std::string> names_;
  std::string label_;
  Value of_;  // whose axes new values have
  int next_ = 0;
  bool changed_ = false;
};

}  // namespace

Fusion with_argument_keys(const Fusion& fusion) {
  Keys keys(fusion);
  return keys.changed() ? std::move(keys).finish() : fusion;
}

}  // namespace jf::plan
