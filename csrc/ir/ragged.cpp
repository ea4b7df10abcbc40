#include "ir/ragged.h"

#include <algorithm>

#include "base/error.h"
#include "base/lists.h"
#include "ir/text.h"

namespace jf::ir {
namespace {

std::string type(const Fusion& fusion, ValueId id) { return print_type(fusion, fusion.values[id]); }

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
    const bool parts_of_ragged = reduce.parts > 0 && !reduce.dims.empty() && reduce.dims[0] == axis;
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

  // Attributes of other ops are refused behind this, as those of dense values are.
  void check(const Attribute& attribute) const {
    switch (op.op_class) {
      case OpClass::kReduce:
        if (const auto* reduce = std::get_if<Reduce>(&attribute)) check_reduce(*reduce);
        return;
      case OpClass::kScan:
        if (const auto* scan = std::get_if<Scan>(&attribute)) {
          check_kept({scan->axis}, "scanned", "scan before partition, or along another axis");
        }
        return;
      case OpClass::kGrouped: refuse("grouped_matmul takes rows in one array and their extents; combine it first");
      case OpClass::kConcat: refuse("put arrays side by side before partition");
      default: break;
    }
    switch (op.kind) {
      case OpKind::kSqueeze:
        if (const auto* squeezed = std::get_if<Dims>(&attribute)) {
          check_kept(squeezed->dims, "squeezed", "fold it instead");
        }
        return;
      case OpKind::kSlice:
        refuse(
            "only the builder's slice with strides of 1 along its ragged axis can pass it by; slice before partition");
      case OpKind::kPad: refuse("pad before partition, or give partition greater extents");
      case OpKind::kReshape: refuse("reshape before partition, or combine it first");
      case OpKind::kTake: refuse("take before partition, or combine it first");
      case OpKind::kSearch: refuse("search before partition, or combine it first");
      case OpKind::kPlace: refuse("put arrays side by side before partition");
      case OpKind::kSpread: refuse("spread is the compiler's own");
      default: break;
    }
  }
};

}  // namespace

// A component with components, or rows of rows.
void check_level(const Fusion& fusion, const char* op, ValueId id, int64_t axis) {
  const Value& value = fusion.values[id];
  for (int ragged : ragged_axes(value)) {
    const bool indexes = contains(value.axes[ragged].by, axis);
    JF_REQUIRE(axis != ragged && !indexes, "[", op, "] ", value.name, ", ", type(fusion, id), ", is nested; ",
               "multi-level nesting: its axis ", axis,
               indexes ? " says which component an element is of" : " is ragged",
               "; fold or combine it first, or keep the inner components as a dense axis");
  }
}

// Operands that must have the same axes.
void check_equal(const Fusion& fusion, std::string_view op, std::span<const ValueId> inputs) {
  for (ValueId id : inputs) {
    const Value &a = fusion.values[inputs[0]], &b = fusion.values[id];
    if (a.axes.size() != b.axes.size()) continue;  // refused for every value
    const std::vector<int> x = ragged_axes(a), y = ragged_axes(b);
    if (x.empty() && y.empty()) continue;
    JF_REQUIRE(!x.empty() && !y.empty(), "[", op, "] ", x.empty() ? b.name : a.name, ", ",
               type(fusion, x.empty() ? id : inputs[0]), ", is nested, and ", x.empty() ? a.name : b.name, ", ",
               type(fusion, x.empty() ? inputs[0] : id),
               ", is dense; partition it or broadcast it like the nested one");
    bool same = x == y;
    for (size_t i = 0; same && i < x.size(); ++i) same = a.axes[x[i]].by == b.axes[y[i]].by;
    JF_REQUIRE(same, "[", op, "] ", a.name, ", ", type(fusion, inputs[0]), ", and ", b.name, ", ", type(fusion, id),
               ", differ in their ragged axes; ",
               x.size() == y.size() ? "transpose one of them" : "stretch or partition one like the other");
    for (int axis : x) {
      JF_REQUIRE(a.axes[axis].extents == b.axes[axis].extents, "[", op, "] ", a.name, " and ", b.name,
                 " have the extents of ", fusion.values[a.axes[axis].extents].name, " and of ",
                 fusion.values[b.axes[axis].extents].name, "; partition both by one value");
    }
  }
}

void check_nested(const Fusion& fusion, const OpInfo& op, const std::vector<ValueId>& inputs,
                  const Attribute& attribute) {
  if (op.op_class == OpClass::kPointwise) check_equal(fusion, op.name, inputs);
  // The others' operands after the first are checked where they are said to be dense.
  const bool all = op.op_class == OpClass::kGrouped || op.op_class == OpClass::kConcat || op.kind == OpKind::kTake ||
                   op.kind == OpKind::kSearch;
  for (size_t i = 0; i < inputs.size() && (i == 0 || all); ++i) {
    const Value& value = fusion.values[inputs[i]];
    const bool stated = !std::holds_alternative<std::monostate>(attribute) || op.kind == OpKind::kReshape;
    for (int axis : ragged_axes(value)) {
      if (stated) Nested{fusion, op, inputs[i], axis, value.axes[axis].by}.check(attribute);
    }
  }
}

void renumber_by(std::vector<Axis>& axes, std::span<const int64_t> to) {
  for (Axis& axis : axes) {
    for (int64_t& by : axis.by) by = to[by];
  }
}

namespace {

// One axis of a partition's operand, and what becomes of it.
struct AxisCut {
  int64_t axis, most, components;
  ValueId starts, extents;
};

void check_cut(const Fusion& fusion, ValueId operand, const AxisCut& cut) {
  const Value &x = fusion.values[operand], &extents = fusion.values[cut.extents];
  check_integers(fusion, cut.starts, "partition", "starts");
  check_integers(fusion, cut.extents, "partition", "extents");
  JF_REQUIRE(shape(fusion.values[cut.starts]) == shape(extents),
             "[partition] starts and extents must have one shape, got ", type(fusion, cut.starts), " and ",
             type(fusion, cut.extents));
  JF_REQUIRE(cut.axis >= 0 && cut.axis < std::ssize(x.axes), "[partition] expected an axis below the rank of ",
             type(fusion, operand), ", got ", cut.axis);
  const int64_t rows = x.axes[cut.axis].extent;
  JF_REQUIRE(cut.most >= 0 && cut.most <= rows, "[partition] axis ", cut.axis, " of ", type(fusion, operand), " has ",
             rows, " elements; a component can have 0 to ", rows, " of them, got most=", cut.most);
  const auto outer = std::ssize(extents.axes) - cut.components;
  JF_REQUIRE(cut.components >= 1 && outer >= 0, "[partition] extents ", type(fusion, cut.extents), " have ",
             extents.axes.size(), " axes; expected 1 or more to be the component, up to all of them, got ",
             cut.components);
  JF_REQUIRE(outer == 0 || outer == cut.axis, "[partition] extents of ", outer + 1, " axes, ",
             type(fusion, cut.extents), ", are for axis ", outer, " of a value, got axis ", cut.axis,
             "; extents of one axis are for any");
  for (int64_t i = 0; i < outer; ++i) {
    JF_REQUIRE(extents.axes[i].extent == x.axes[i].extent, "[partition] extents ", type(fusion, cut.extents),
               " must begin with the first ", outer, " axes of ", type(fusion, operand));
  }
}

// `value`: what the axes behind that of `cut` made of the operand.
void cut_axis(const Fusion& fusion, ValueId operand, Value& value, const AxisCut& cut) {
  check_cut(fusion, operand, cut);
  const Value& extents = fusion.values[cut.extents];
  const auto outer = std::ssize(extents.axes) - cut.components;
  for (int ragged : ragged_axes(value)) {
    for (int64_t by : value.axes[ragged].by) {
      JF_REQUIRE(by != cut.axis, "[partition] multi-level nesting: axis ", cut.axis, " of ", type(fusion, operand),
                 " indexes extents ", type(fusion, value.axes[ragged].extents),
                 " and cannot be ragged; keep it as a dense axis");
    }
  }
  Axis made{cut.most, AxisKind::kIteration, cut.extents, {}};
  for (int64_t i = 0; i < outer; ++i) {
    value.axes[i].kind = AxisKind::kIteration;
    made.by.push_back(i);
  }
  for (Axis& axis : value.axes) {
    for (int64_t& by : axis.by) by += by > cut.axis ? cut.components : 0;
  }
  value.axes.erase(value.axes.begin() + cut.axis);
  for (int64_t i = 0; i < cut.components; ++i) {
    made.by.push_back(cut.axis + i);
    value.axes.insert(value.axes.begin() + cut.axis + i, {extents.axes[outer + i].extent});
  }
  value.axes.insert(value.axes.begin() + cut.axis + cut.components, std::move(made));
}

}  // namespace

void check_partition(const Fusion& fusion, ValueId x, ValueId starts, ValueId extents, int64_t axis, int64_t most) {
  check_cut(fusion, x, {axis, most, 1, starts, extents});
}

Value infer_partition(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute) {
  const Nest& nest = get<Nest>(attribute, "partition", "most=..., axis=...");
  const Value& x = fusion.values[inputs[0]];
  JF_REQUIRE(ragged_axis(x) < 0, "[partition] ", x.name, ", ", type(fusion, inputs[0]),
             ", is nested, and what it comes from is no array that can be partitioned along both axes; partition what "
             "is computed element by element, or combine it first");
  JF_REQUIRE(nest.by.empty(), "[partition] takes no {by=...}");
  const size_t more = nest.also.size() / 2;
  JF_REQUIRE(nest.also.size() % 2 == 0 && inputs.size() == 3 + 2 * more, "[partition] expected starts and extents for ",
             "each of ", 1 + more, " axes, and also=[axis, most, ...], got ", inputs.size() - 1, " operands");
  JF_REQUIRE(more == 0 || nest.components == 1, "[partition] of several axes has components of one axis each, got ",
             nest.components);
  std::vector<AxisCut> cuts = {{nest.axis, nest.most, nest.components, inputs[1], inputs[2]}};
  for (size_t i = 0; i < more; ++i) {
    cuts.push_back({nest.also[2 * i], nest.also[2 * i + 1], 1, inputs[3 + 2 * i], inputs[4 + 2 * i]});
    JF_REQUIRE(cuts[i].axis < cuts[i + 1].axis, "[partition] axes must increase, got ", cuts[i].axis, " and ",
               cuts[i + 1].axis);
  }
  Value result{"", x.dtype, x.axes};
  // The last one first: those before it stay where they are.
  for (size_t i = cuts.size(); i-- > 0;) cut_axis(fusion, inputs[0], result, cuts[i]);
  return result;
}

Value infer_stretch(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute) {
  const Nest& nest = get<Nest>(attribute, "stretch", "most=..., axis=..., by=[...]");
  const Value &x = fusion.values[inputs[0]], &extents = fusion.values[inputs[1]];
  check_integers(fusion, inputs[1], "stretch", "extents");
  const auto rank = static_cast<int64_t>(x.axes.size());
  JF_REQUIRE(nest.also.empty() && nest.components == 1, "[stretch] makes one axis ragged; stretch again for another");
  JF_REQUIRE(nest.axis >= 0 && nest.axis < rank && x.axes[nest.axis].extent == 1, "[stretch] axis ", nest.axis, " of ",
             type(fusion, inputs[0]), " must be one of extent 1");
  check_level(fusion, "stretch", inputs[0], nest.axis);
  JF_REQUIRE(nest.most >= 0, "[stretch] expected most from 0 on, got ", nest.most);
  JF_REQUIRE(nest.by.size() == extents.axes.size(), "[stretch] needs an axis in by for each axis of extents ",
             type(fusion, inputs[1]), ", got ", nest.by.size());
  for (size_t i = 0; i < nest.by.size(); ++i) {
    const int64_t by = nest.by[i];
    const bool fits = by >= 0 && by < rank && by != nest.axis && x.axes[by].extent == extents.axes[i].extent &&
                      std::count(nest.by.begin(), nest.by.end(), by) == 1 && x.axes[by].extents < 0;
    JF_REQUIRE(fits, "[stretch] axis ", by, " of ", type(fusion, inputs[0]), " cannot index axis ", i, " of extents ",
               type(fusion, inputs[1]), ": expected another dense axis of its extent, each once");
  }
  Value result{"", x.dtype, x.axes};
  result.axes[nest.axis] = {nest.most, AxisKind::kBroadcast, inputs[1], nest.by};
  return result;
}

Value infer_combine(const Fusion& fusion, const std::vector<ValueId>& inputs, const Attribute& attribute) {
  const Combine& combine = get<Combine>(attribute, "combine", "rows=...");
  const Value& x = fusion.values[inputs[0]];
  const std::vector<int> axes = ragged_axes(x);
  JF_REQUIRE(!axes.empty(), "[combine] expected a nested value, got ", type(fusion, inputs[0]),
             "; partition makes one");
  JF_REQUIRE(axes.size() == inputs.size() - 1 && axes.size() == 1 + combine.also.size(), "[combine] ",
             type(fusion, inputs[0]), " has ", axes.size(), " ragged axes; expected starts and rows for each, got ",
             inputs.size() - 1, " and ", 1 + combine.also.size());
  JF_REQUIRE(axes.size() == 1 || combine.components == 1, "[combine] of several ragged axes takes no components");
  std::vector<int64_t> gone;
  std::vector<int64_t> to = shape(x);
  for (size_t i = 0; i < axes.size(); ++i) {
    check_integers(fusion, inputs[1 + i], "combine", "starts");
    const Axis& ragged = x.axes[axes[i]];
    const int64_t rows = i == 0 ? combine.rows : combine.also[i - 1];
    JF_REQUIRE(shape(fusion.values[inputs[1 + i]]) == shape(fusion.values[ragged.extents]),
               "[combine] starts must have the shape of extents ", type(fusion, ragged.extents), ", got ",
               type(fusion, inputs[1 + i]));
    JF_REQUIRE(rows >= ragged.extent, "[combine] a component of ", type(fusion, inputs[0]), " can have ", ragged.extent,
               " rows; expected room for as many or more, got rows=", rows);
    JF_REQUIRE(combine.components >= 1 && combine.components <= std::ssize(ragged.by), "[combine] the components of ",
               type(fusion, inputs[0]), " have 1 to ", ragged.by.size(), " axes, got ", combine.components);
    gone.insert(gone.end(), ragged.by.end() - combine.components, ragged.by.end());
    to[axes[i]] = rows;
  }
  Value result{"", x.dtype, {}};
  for (size_t i = 0; i < to.size(); ++i) {
    if (!contains(gone, static_cast<int64_t>(i))) result.axes.push_back({to[i]});
  }
  return result;
}

}  // namespace jf::ir
