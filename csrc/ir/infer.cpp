#include "ir/infer.h"

#include <algorithm>

#include "ir/inference.h"
#include "ir/ragged.h"

namespace jf::ir {
namespace {

constexpr size_t kMaxRank = 32;

// Whose result is as it is stated, whatever the operands are.
bool is_dense(OpKind kind) {
  return kind == OpKind::kConstant || kind == OpKind::kIota || kind == OpKind::kReshape || kind == OpKind::kTake;
}

}  // namespace

Value Inference::constant(const Value& stated) const {
  const Constant& c = get<Constant>("value=...");
  JF_REQUIRE(stated.axes.empty(), "[constant] must be a scalar, got ", print_type(stated), "; broadcast it instead");
  JF_REQUIRE(std::holds_alternative<double>(c.value) == is_float(stated.dtype), "[constant] a value of dtype ",
             name(stated.dtype), " needs ", is_float(stated.dtype) ? "a number with a point" : "an integer");
  return stated;
}

Value Inference::iota(const Value& stated) const {
  const Dims& d = get<Dims>("dims=[axis]");
  JF_REQUIRE(d.dims.size() == 1 && d.dims[0] >= 0 && d.dims[0] < static_cast<int64_t>(stated.axes.size()),
             "[iota] expected one axis below rank ", stated.axes.size());
  JF_REQUIRE(stated.dtype != DType::kPred, "[iota] counts in numbers, got ", print_type(stated));
  Value result = stated;
  for (size_t i = 0; i < result.axes.size(); ++i) {
    result.axes[i].kind = static_cast<int64_t>(i) == d.dims[0] ? AxisKind::kIteration : AxisKind::kBroadcast;
  }
  return result;
}

Value Inference::search() const {
  const Search& s = get<Search>("side=left or right, dims=[...]");
  const Value &table = in(0), &numbers = in(1);
  JF_REQUIRE(table.dtype == numbers.dtype, "[search] the table and the numbers must have one dtype, got ", type(0),
             " and ", type(1), "; convert one");
  JF_REQUIRE(table.axes.size() == s.dims.size() + 1, "[search] needs a result axis for each axis of ", type(0),
             " but the last, got ", s.dims.size());
  JF_REQUIRE(table.axes.back().extent <= INT32_MAX, "[search] expected a table of at most ", INT32_MAX,
             " elements, got ", type(0));
  Value result{"", DType::kS32, numbers.axes};
  for (size_t i = 0; i < s.dims.size(); ++i) {
    const int64_t dim = s.dims[i];
    JF_REQUIRE(dim >= 0 && dim < static_cast<int64_t>(result.axes.size()) && (i == 0 || dim > s.dims[i - 1]),
               "[search] dims must increase and stay below the rank of ", type(1), ", got dims[", i, "]=", dim);
    JF_REQUIRE(table.axes[i].extent == result.axes[dim].extent, "[search] axis ", i, " of ", type(0),
               " must have the extent of axis ", dim, " of ", type(1));
    if (table.axes[i].kind == AxisKind::kIteration) result.axes[dim].kind = AxisKind::kIteration;
  }
  return result;
}

Value Inference::reduce() const {
  const Reduce& r = get<Reduce>("dims=[...]");
  const Value& x = in(0);
  JF_REQUIRE(!r.dims.empty(), "[", op.name, "] expected at least one axis to fold");
  for (size_t i = 0; i < r.dims.size(); ++i) {
    JF_REQUIRE(
        r.dims[i] >= 0 && r.dims[i] < static_cast<int64_t>(x.axes.size()) && (i == 0 || r.dims[i] > r.dims[i - 1]), "[",
        op.name, "] dims must increase and stay below the rank of ", type(0), ", got dims[", i, "]=", r.dims[i]);
  }
  const int64_t extent = x.axes[r.dims[0]].extent;
  JF_REQUIRE(r.parts >= 0 && r.parts <= extent, "[", op.name, "] expected 1 to ", extent, " parts of axis ", r.dims[0],
             " of ", type(0), ", got ", r.parts);
  JF_REQUIRE(!r.in_turn || r.parts > 0, "[", op.name, "] in_turn says which indices each part has; give parts, too");
  Value result{"", x.dtype, {}};
  std::vector<int64_t> to;
  for (size_t i = 0; i < x.axes.size(); ++i) {
    const auto dim = static_cast<int64_t>(i);
    to.push_back(static_cast<int64_t>(result.axes.size()));
    if (!std::binary_search(r.dims.begin(), r.dims.end(), dim)) {
      result.axes.push_back(x.axes[i]);
    } else if (r.parts > 0 && dim == r.dims[0]) {
      result.axes.push_back({r.parts});
    }
  }
  renumber_by(result.axes, to);
  return result;
}

// A value that repeats along the axis does not do so once it is scanned.
Value Inference::scan() const {
  const Scan& s = get<Scan>("axis=...");
  Value result{"", in(0).dtype, in(0).axes};
  for (size_t i = 1; i < inputs.size(); ++i) {
    JF_REQUIRE(shape(in(i)) == shape(result) && in(i).dtype == result.dtype, "[", op.name,
               "] operands must have equal shapes and dtypes, got ", type(0), " and ", type(i),
               "; broadcast or convert one");
    for (size_t a = 0; a < result.axes.size(); ++a) {
      if (in(i).axes[a].kind == AxisKind::kIteration) result.axes[a].kind = AxisKind::kIteration;
    }
  }
  JF_REQUIRE(s.axis >= 0 && s.axis < static_cast<int64_t>(result.axes.size()), "[", op.name,
             "] expected an axis below the rank of ", type(0), ", got ", s.axis);
  result.axes[s.axis].kind = AxisKind::kIteration;
  const int64_t extent = result.axes[s.axis].extent;
  JF_REQUIRE(s.parts >= 0 && s.parts <= extent, "[", op.name, "] expected 1 to ", extent, " parts of axis ", s.axis,
             " of ", type(0), ", got ", s.parts);
  return result;
}

void Inference::check_operand_types() const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const DType t = in(i).dtype;
    const bool logical = is_integer(t) || t == DType::kPred;
    const bool ok = op.operands == OperandTypes::kAny || (op.operands == OperandTypes::kNumber && t != DType::kPred) ||
                    (op.operands == OperandTypes::kFloating && is_float(t)) ||
                    (op.operands == OperandTypes::kInteger && is_integer(t)) ||
                    (op.operands == OperandTypes::kLogical && logical);
    JF_REQUIRE(ok, "[", op.name, "] operand ", i, " has unsupported dtype ", name(t));
  }
}

Value Inference::pointwise(const Value& stated) const {
  JF_REQUIRE(std::holds_alternative<std::monostate>(attribute), "[", op.name, "] takes operands alone, no {...}");
  Value result{"", in(0).dtype, in(0).axes};
  const size_t first = op.result == ResultRule::kSelect ? 1 : 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& x = in(i);
    JF_REQUIRE(shape(x) == shape(result), "[", op.name, "] operands must have equal shapes, got ", type(0), " and ",
               type(i), "; broadcast them first");
    JF_REQUIRE(i < first || x.dtype == in(first).dtype, "[", op.name, "] operands must have equal dtypes, got ",
               type(first), " and ", type(i), "; convert one");
    for (size_t a = 0; a < x.axes.size(); ++a) {
      if (x.axes[a].kind == AxisKind::kIteration) result.axes[a].kind = AxisKind::kIteration;
    }
  }
  switch (op.result) {
    case ResultRule::kSame: break;
    case ResultRule::kPred: result.dtype = DType::kPred; break;
    case ResultRule::kSelect:
      JF_REQUIRE(in(0).dtype == DType::kPred, "[select] operand 0 must be pred, got ", type(0));
      result.dtype = in(1).dtype;
      break;
    case ResultRule::kStated: result.dtype = stated.dtype; break;
    case ResultRule::kCode:
      JF_REQUIRE(in(0).dtype == DType::kF32, "[", op.name, "] takes f32, got ", type(0), "; convert it");
      result.dtype = DType::kU32;
      break;
  }
  if (result.dtype == DType::kU4) {
    JF_REQUIRE(op.kind == OpKind::kConvert && is_integer(in(0).dtype), "[", op.name,
               "] u4 is made of integers by convert alone, got ", type(0));
    JF_REQUIRE(!result.axes.empty() && result.axes.back().extent % 2 == 0 && ragged_axis(in(0)) < 0, "[", op.name,
               "] u4 are two to a byte along a last axis that is even and not ragged, got ", type(0));
  }
  if (op.kind == OpKind::kBitcast) {
    JF_REQUIRE(size_of(result.dtype) == size_of(in(0).dtype) && result.dtype != DType::kPred,
               "[bitcast] needs a number of equal size, got ", name(in(0).dtype), " to ", name(result.dtype));
  }
  return result;
}

Value infer(const Fusion& fusion, OpKind kind, const std::vector<ValueId>& inputs, const Attribute& attribute,
            const Value& stated) {
  const OpInfo& op = info(kind);
  const size_t arity = op.arity;
  const bool optional = kind == OpKind::kGroupedMatmul && inputs.size() > arity && inputs.size() <= arity + 3;
  const bool many =
      (kind == OpKind::kConcat || kind == OpKind::kTake || kind == OpKind::kPartition || kind == OpKind::kCombine) &&
      inputs.size() > arity;
  JF_REQUIRE(inputs.size() == arity || optional || many, "[", op.name, "] expected ", arity, " operands, got ",
             inputs.size());
  const auto known = static_cast<ValueId>(fusion.values.size());
  for (ValueId id : inputs) {
    JF_REQUIRE(id >= 0 && id < known, "[", op.name, "] unknown value ", id);
    const bool takes = moves_float8(kind) || kind == OpKind::kGroupedMatmul;
    JF_REQUIRE(takes || !is_float8(fusion.values[id].dtype), "[", op.name, "] does not take 8-bit floats, got ",
               print_type(fusion.values[id]), "; convert them to f32");
    JF_REQUIRE(fusion.values[id].dtype != DType::kU4, "[", op.name, "] cannot read ", print_type(fusion.values[id]),
               ", which is only stored; read what it was converted from");
  }
  JF_REQUIRE(moves_float8(kind) || !is_float8(stated.dtype), "[", op.name, "] cannot make 8-bit floats");
  JF_REQUIRE(kind == OpKind::kConvert || stated.dtype != DType::kU4, "[", op.name, "] cannot make u4; convert to it");
  JF_REQUIRE(stated.axes.size() <= kMaxRank, "[", op.name, "] rank ", stated.axes.size(), " is above the limit ",
             kMaxRank);
  for (const Axis& axis : stated.axes) {
    JF_REQUIRE(axis.extent >= 0, "[", op.name, "] axis extents must not be negative, got ", axis.extent);
    JF_REQUIRE(axis.extents < 0 || !is_dense(kind), "[", op.name, "] makes a dense value; partition makes nested ones");
  }
  const Inference inference{fusion, op, inputs, attribute};
  inference.check_operand_types();
  check_nested(fusion, op, inputs, attribute);
  switch (op.op_class) {
    case OpClass::kConstant: return inference.constant(stated);
    case OpClass::kConcat: return inference.concat();
    case OpClass::kIota: return inference.iota(stated);
    case OpClass::kPointwise: return inference.pointwise(stated);
    case OpClass::kGrouped: return inference.grouped(stated);
    case OpClass::kView:
      if (kind == OpKind::kBroadcast) return inference.broadcast(stated);
      if (kind == OpKind::kSlice) return inference.slice(stated);
      if (kind == OpKind::kReshape) return inference.reshape(stated);
      if (kind == OpKind::kTake) return inference.take(stated);
      if (kind == OpKind::kPad) return inference.pad(stated);
      if (kind == OpKind::kPlace) return inference.place();
      if (kind == OpKind::kSpread) return inference.spread(stated);
      if (kind == OpKind::kCopy) return inference.copy();
      if (kind == OpKind::kPartition) return infer_partition(fusion, inputs, attribute);
      if (kind == OpKind::kStretch) return infer_stretch(fusion, inputs, attribute);
      if (kind == OpKind::kCombine) return infer_combine(fusion, inputs, attribute);
      return kind == OpKind::kTranspose ? inference.transpose() : inference.squeeze();
    case OpClass::kReduce: return inference.reduce();
    case OpClass::kScan: return inference.scan();
    case OpClass::kSearch: return inference.search();
  }
  throw InternalError(__FILE__, __LINE__, "op class", std::string(op.name));
}

}  // namespace jf::ir
