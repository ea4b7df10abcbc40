#include "ir/ragged.h"

#include <algorithm>

#include "base/error.h"
#include "ir/text.h"

namespace jf::ir {
namespace {

std::string type(const Fusion& fusion, ValueId id) { return print_type(fusion, fusion.values[id]); }

bool contains(const std::vector<int64_t>& list, int64_t item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

template <class T>
const T& get(const Attribute& attribute, const char* op, const char* what) {
  const T* held = std::get_if<T>(&attribute);
  JF_REQUIRE(held, "[", op, "] needs {", what, "}");
  return *held;
}

void check_integers(const Fusion& fusion, ValueId id, const char* op, const char* what) {
  const Value& value = fusion.values[id];
  JF_REQUIRE(value.dtype == DType::kS32 && !value.axes.empty() && ragged_axis(value) < 0, "[", op, "] expected ", what,
             " of s32[..., components], got ", type(fusion, id));
}

// Which axes of an operand with a ragged one an op may not touch: it and those that say which component it is of.
struct Nested {
  const Fusion& fusion;
  const OpInfo& op;
  ValueId id;
  int64_t axis;
  const std::vector<int64_t>& by;

  std::string is() const {
    return cat("[", op.name, "] ", fusion.values[id].name, ", ", type(fusion, id), ", is nested");
  }
  [[noreturn]] void refuse(const char* instead) const { throw UserError(cat(is(), "; ", instead)); }

  void check_kept(const std::vector<int64_t>& dims, const char* does, const char* instead) const {
    for (int64_t dim : dims) {
      JF_REQUIRE(dim != axis, is(), ": its ragged axis ", axis, " cannot be ", does, "; ", instead);
      JF_REQUIRE(!contains(by, dim), is(), ": its axis ", dim, " says which component an element is of and cannot be ",
                 does, "; ", instead);
    }
  }

  void check_reduce(const Reduce& reduce) const {
    const bool parts_of_ragged = reduce.parts > 0 && reduce.dims[0] == axis;
    JF_REQUIRE(
        !parts_of_ragged, is(), ": its ragged axis ", axis,
        " cannot be folded in parts; partition it into more components, fold those, and then fold their results");
    if (contains(reduce.dims, axis)) return;
    for (int64_t dim : by) {
      JF_REQUIRE(!contains(reduce.dims, dim), is(), ": axis ", dim,
                 " is its component, whose elements have extents of "
                 "their own along ragged axis ",
                 axis, "; fold the ragged axis with it, or before");
    }
  }

  void check(const Attribute& attribute) const {
    switch (op.op_class) {
      case OpClass::kReduce: return check_reduce(std::get<Reduce>(attribute));
      case OpClass::kScan:
        return check_kept({std::get<Scan>(attribute).axis}, "scanned", "scan before partition, or along another axis");
      case OpClass::kGrouped: refuse("grouped_matmul takes rows in one array and their extents; combine it first");
      case OpClass::kConcat: refuse("put arrays side by side before partition");
      default: break;
    }
    switch (op.kind) {
      case OpKind::kSqueeze: return check_kept(std::get<Dims>(attribute).dims, "squeezed", "fold it instead");
      case OpKind::kSlice:
        refuse(
            "only the builder's slice with strides of 1 along its ragged axis can pass it by; slice before partition");
      case OpKind::kPad: refuse("pad before partition, or give partition greater extents");
      case OpKind::kReshape: refuse("reshape before partition, or combine it first");
      case OpKind::kTake: refuse("take before partition, or combine it first");
      case OpKind::kSearch: refuse("search before partition, or combine it first");
      case OpKind::kPlace: refuse("put arrays side by side before partition");
      case OpKind::kSpread: refuse("spread is the compiler's own");
      case OpKind::kPartition:
      case OpKind::kStretch:
        refuse(
            "multi-level nesting, or a second ragged axis: fold or combine the first one, or keep it as a dense axis");
      default: break;
    }
  }
};

// Operands that must have the same axes.
void check_equal(const Fusion& fusion, const OpInfo& op, const std::vector<ValueId>& inputs) {
  for (ValueId id : inputs) {
    const Value &a = fusion.values[inputs[0]], &b = fusion.values[id];
    if (shape(a) != shape(b)) continue;  // refused for every value
    const int x = ragged_axis(a), y = ragged_axis(b);
    if (x < 0 && y < 0) continue;
    JF_REQUIRE(x >= 0 && y >= 0, "[", op.name, "] ", x >= 0 ? a.name : b.name, ", ",
               type(fusion, x >= 0 ? inputs[0] : id), ", is nested, and ", x >= 0 ? b.name : a.name, ", ",
               type(fusion, x >= 0 ? id : inputs[0]), ", is dense; partition it or broadcast it like the nested one");
    JF_REQUIRE(x == y && a.axes[x].by == b.axes[y].by, "[", op.name, "] ", a.name, ", ", type(fusion, inputs[0]),
               ", and ", b.name, ", ", type(fusion, id), ", differ in their ragged axes; transpose one of them");
    JF_REQUIRE(a.axes[x].extents == b.axes[y].extents, "[", op.name, "] ", a.name, " and ", b.name,
               " have the extents of ", fusion.values[a.axes[x].extents].name, " and of ",
               fusion.values[b.axes[y].extents].name, "; partition both by one value");
  }
}

}  // namespace

void check_nested(const Fusion& fusion, const OpInfo& op, const std::vector<ValueId>& inputs,
                  const Attribute& attribute) {
  if (op.op_class == OpClass::kPointwise) check_equal(fusion, op, inputs);
  // The others' operands after the first are checked where they are said to be dense.
  const bool all = op.op_class == OpClass::kGrouped || op.op_class == OpClass::kConcat || op.kind == OpKind::kTake ||
                   op.kind == OpKind::kSearch;
  for (size_t i = 0; i < inputs.size() && (i == 0 || all); ++i) {
    const Value& value = fusion.values[inputs[i]];
    const int axis = ragged_axis(value);
    if (axis < 0) continue;
    const bool stated = !std::holds_alternative<std::monostate>(attribute) || op.kind == OpKind::kReshape;
    if (stated) Nested{fusion, op, inputs[i], axis, value.axes[axis].by}.check(attribute);
  }
}

void renumber_by(std::vector<Axis>& axes, std::span<const int64_t> to) {
  for (Axis& axis : axes) {
    for (int64_t& by : axis.by) by = to[by];
  }
}

Value infer_partition(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute) {
  const Nest& nest = get<Nest>(attribute, "partition", "most=..., axis=...");
  const Value &x = fusion.values[inputs[0]], &extents = fusion.values[inputs[2]];
  check_integers(fusion, inputs[1], "partition", "starts");
  check_integers(fusion, inputs[2], "partition", "extents");
  JF_REQUIRE(shape(fusion.values[inputs[1]]) == shape(extents),
             "[partition] starts and extents must have one shape, got ", type(fusion, inputs[1]), " and ",
             type(fusion, inputs[2]));
  const auto rank = static_cast<int64_t>(x.axes.size());
  JF_REQUIRE(nest.axis >= 0 && nest.axis < rank, "[partition] expected an axis below the rank of ",
             type(fusion, inputs[0]), ", got ", nest.axis);
  JF_REQUIRE(nest.by.empty(), "[partition] takes no {by=...}");
  const int64_t rows = x.axes[nest.axis].extent;
  JF_REQUIRE(nest.most >= 0 && nest.most <= rows, "[partition] axis ", nest.axis, " of ", type(fusion, inputs[0]),
             " has ", rows, " elements; a component can have 0 to ", rows, " of them, got most=", nest.most);
  const auto outer = static_cast<int64_t>(extents.axes.size()) - nest.components;
  JF_REQUIRE(nest.components >= 1 && outer >= 0, "[partition] extents ", type(fusion, inputs[2]), " have ",
             extents.axes.size(), " axes; expected 1 or more to be the component, up to all of them, got ",
             nest.components);
  JF_REQUIRE(outer == 0 || outer == nest.axis, "[partition] extents of ", outer + 1, " axes, ", type(fusion, inputs[2]),
             ", are for axis ", outer, " of a value, got axis ", nest.axis, "; extents of one axis are for any");
  Value result{"", x.dtype, x.axes};
  Axis ragged{nest.most, AxisKind::kIteration, inputs[2], {}};
  for (int64_t i = 0; i < outer; ++i) {
    JF_REQUIRE(extents.axes[i].extent == x.axes[i].extent, "[partition] extents ", type(fusion, inputs[2]),
               " must begin with the first ", outer, " axes of ", type(fusion, inputs[0]));
    result.axes[i].kind = AxisKind::kIteration;
    ragged.by.push_back(i);
  }
  result.axes.erase(result.axes.begin() + nest.axis);
  for (int64_t i = 0; i < nest.components; ++i) {
    ragged.by.push_back(nest.axis + i);
    result.axes.insert(result.axes.begin() + nest.axis + i, {extents.axes[outer + i].extent});
  }
  result.axes.insert(result.axes.begin() + nest.axis + nest.components, std::move(ragged));
  return result;
}

Value infer_stretch(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute) {
  const Nest& nest = get<Nest>(attribute, "stretch", "most=..., axis=..., by=[...]");
  const Value &x = fusion.values[inputs[0]], &extents = fusion.values[inputs[1]];
  check_integers(fusion, inputs[1], "stretch", "extents");
  const auto rank = static_cast<int64_t>(x.axes.size());
  JF_REQUIRE(nest.axis >= 0 && nest.axis < rank && x.axes[nest.axis].extent == 1, "[stretch] axis ", nest.axis, " of ",
             type(fusion, inputs[0]), " must be one of extent 1");
  JF_REQUIRE(nest.most >= 0, "[stretch] expected most from 0 on, got ", nest.most);
  JF_REQUIRE(nest.by.size() == extents.axes.size(), "[stretch] needs an axis in by for each axis of extents ",
             type(fusion, inputs[1]), ", got ", nest.by.size());
  for (size_t i = 0; i < nest.by.size(); ++i) {
    const int64_t by = nest.by[i];
    const bool fits = by >= 0 && by < rank && by != nest.axis && x.axes[by].extent == extents.axes[i].extent &&
                      std::count(nest.by.begin(), nest.by.end(), by) == 1;
    JF_REQUIRE(fits, "[stretch] axis ", by, " of ", type(fusion, inputs[0]), " cannot index axis ", i, " of extents ",
               type(fusion, inputs[1]), ": expected another axis of its extent, each once");
  }
  Value result{"", x.dtype, x.axes};
  result.axes[nest.axis] = {nest.most, AxisKind::kBroadcast, inputs[1], nest.by};
  return result;
}

Value infer_combine(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute) {
  const Combine& combine = get<Combine>(attribute, "combine", "rows=...");
  const Value &x = fusion.values[inputs[0]], &starts = fusion.values[inputs[1]];
  const int axis = ragged_axis(x);
  JF_REQUIRE(axis >= 0, "[combine] expected a nested value, got ", type(fusion, inputs[0]), "; partition makes one");
  check_integers(fusion, inputs[1], "combine", "starts");
  const Axis& ragged = x.axes[axis];
  JF_REQUIRE(shape(starts) == shape(fusion.values[ragged.extents]), "[combine] starts must have the shape of extents ",
             type(fusion, ragged.extents), ", got ", type(fusion, inputs[1]));
  JF_REQUIRE(combine.rows >= ragged.extent, "[combine] a component of ", type(fusion, inputs[0]), " can have ",
             ragged.extent, " rows; expected room for as many or more, got rows=", combine.rows);
  JF_REQUIRE(combine.components >= 1 && combine.components <= static_cast<int64_t>(ragged.by.size()),
             "[combine] the components of ", type(fusion, inputs[0]), " have 1 to ", ragged.by.size(), " axes, got ",
             combine.components);
  const std::vector<int64_t> gone(ragged.by.end() - combine.components, ragged.by.end());
  Value result{"", x.dtype, {}};
  for (size_t i = 0; i < x.axes.size(); ++i) {
    if (contains(gone, static_cast<int64_t>(i))) continue;
    result.axes.push_back({static_cast<int>(i) == axis ? combine.rows : x.axes[i].extent});
  }
  return result;
}

}  // namespace jf::ir
