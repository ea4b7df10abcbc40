// Other groupings of the rows of a nested value: they move, through an array in memory.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/integers.h"
#include "ir/build.h"
#include "ir/ragged.h"
#include "ir/text.h"

namespace jf::ir {
namespace {

constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();

int64_t product(const std::vector<int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

// Whether axes stand as partition makes them: those that extents are of in front, the component before its rows.
Builder::Groups Builder::groups_of(ValueId x, const char* call) {
  const Value nested = value(x, call);
  const int axis = ragged_axis(nested);
  JF_REQUIRE(axis >= 0, "[", call, "] expected a nested value, got ", print_type(nested), "; partition makes one");
  check_one(x, call);
  const std::vector<int64_t>& by = nested.axes[axis].by;
  bool in_order = by.back() + 1 == axis;
  for (size_t i = 0; by.size() > 1 && i < by.size(); ++i) in_order = in_order && by[i] == static_cast<int64_t>(i);
  JF_REQUIRE(in_order, "[", call, "] ", nested.name, ", ", print_type(fusion_, nested),
             ": expected its rows behind their component, and the axes of extents in front; transpose it");
  Groups groups{axis, nested.axes[axis].extent, shape(fusion_.values[nested.axes[axis].extents]), -1, 0};
  groups.extents =
      pointwise(OpKind::kClamp, std::array{full(DType::kS32, groups.shape, {int64_t{0}}), nested.axes[axis].extents,
                                           full(DType::kS32, groups.shape, {groups.most})});
  // As many rows as the arrays that it comes from have, where it comes from some.
  std::vector<ValueId> todo = {x};
  for (size_t i = 0; i < todo.size(); ++i) {
    const Op* op = definition(todo[i]);
    if (op == nullptr || ragged_axis(fusion_.values[todo[i]]) < 0) continue;
    if (op->kind == OpKind::kPartition) {
      const auto& nest = std::get<Nest>(op->attribute);
      groups.rows = std::max(groups.rows, fusion_.values[op->inputs[0]].axes[nest.axis].extent);
    }
    for (ValueId id : op->inputs) {
      if (std::find(todo.begin(), todo.end(), id) == todo.end()) todo.push_back(id);
    }
  }
  if (groups.rows == 0) groups.rows = groups.most * groups.shape.back();
  return groups;
}

ValueId Builder::times(ValueId x, int64_t factor) {
  return pointwise(OpKind::kMul, std::array{x, full(DType::kS32, shape(fusion_.values[x]), {factor})});
}

// Where components begin that lie one after another.
ValueId Builder::one_after_another(ValueId extents) {
  const int64_t last = std::ssize(fusion_.values[extents].axes) - 1;
  return pointwise(OpKind::kSub, std::array{scan(OpKind::kScanSum, extents, last, false), extents});
}

// What fits: the rest of components that share rows, or go on behind an array, is cut off.
ValueId Builder::that_fit(ValueId extents, ValueId starts, int64_t rows) {
  const std::vector<int64_t> own = shape(fusion_.values[extents]);
  const ValueId left = pointwise(OpKind::kSub, std::array{full(DType::kS32, own, {rows}), starts});
  return pointwise(OpKind::kMax, std::array{full(DType::kS32, own, {int64_t{0}}),
                                            pointwise(OpKind::kMin, std::array{extents, left})});
}

Builder::Nested Builder::split(ValueId x, int64_t axis, int64_t factor) {
  const Groups groups = groups_of(x, "split");
  JF_REQUIRE(axis == groups.axis, "[split] expected ragged axis ", groups.axis, " of ",
             print_type(fusion_, fusion_.values[x]), ", got ", axis, "; reshape splits dense axes");
  JF_REQUIRE(factor >= 1, "[split] expected a factor from 1 on, got ", factor);
  // Each component has at most one part that is not full; where there is none, there is room for one all the same.
  const int64_t parts = std::max(groups.rows / factor + groups.shape.back(), divide_up(groups.most, factor));
  JF_REQUIRE(parts <= kMostRows / factor, "[split] ", parts, " parts of ", factor, " rows do not fit in s32");
  const ValueId filled =
      pointwise(OpKind::kAdd, std::array{groups.extents, full(DType::kS32, groups.shape, {factor - 1})});
  const ValueId counts = pointwise(OpKind::kDiv, std::array{filled, full(DType::kS32, groups.shape, {factor})});
  const ValueId starts = one_after_another(counts);
  const ValueId stored = combine(x, times(starts, factor), std::max(parts * factor, groups.most));
  std::vector<int64_t> to = shape(fusion_.values[stored]);
  const int64_t at = groups.axis - 1;
  to[at] = parts;
  to.insert(to.begin() + at + 1, factor);
  JF_CHECK(product(to) == elements(fusion_.values[stored]), "parts of rows and their storage differ");
  const int64_t most = std::min(divide_up(groups.most, factor), parts);
  const ValueId kept = that_fit(counts, starts, parts);
  return {partition(reshape(stored, to), starts, kept, at, most), starts, kept};
}

Builder::Nested Builder::merge(ValueId x, int64_t first, int64_t second) {
  const Groups groups = groups_of(x, "merge");
  const std::vector<int64_t> from = shape(fusion_.values[x]);
  const int64_t component = groups.axis - 1, outer = groups.axis - 2;
  if (first == component && second == groups.axis) {
    const ValueId starts = one_after_another(groups.extents);
    return {combine(x, starts, std::max(groups.rows, groups.most)), starts, groups.extents};
  }
  if (first == groups.axis && second == groups.axis + 1 && second < std::ssize(from)) {
    const int64_t size = from[second];
    JF_REQUIRE(groups.rows <= kMostRows / std::max<int64_t>(size, 1), "[merge] ", groups.rows, " rows times ", size,
               " do not fit in s32");
    const ValueId starts = one_after_another(groups.extents);
    const ValueId stored = combine(x, starts, std::max(groups.rows, groups.most));
    std::vector<int64_t> to = shape(fusion_.values[stored]);
    to[component] *= size;
    to.erase(to.begin() + component + 1);
    const ValueId begins = times(starts, size), counts = times(that_fit(groups.extents, starts, groups.rows), size);
    return {partition(reshape(stored, to), begins, counts, component, groups.most * size), begins, counts};
  }
  JF_REQUIRE(groups.shape.size() > 1 && first == outer && second == groups.axis, "[merge] axes (", first, ", ", second,
             ") of ", print_type(fusion_, fusion_.values[x]),
             " are neither (component, ragged), (ragged, next dense) nor (last outer axis of extents, ragged)");
  // The rows of one component from each outer index, one after the other.
  const int64_t along = std::ssize(groups.shape) - 2, rows = groups.rows * groups.shape[along];
  JF_REQUIRE(rows <= kMostRows, "[merge] ", groups.shape[along], " times ", groups.rows, " rows do not fit in s32");
  const ValueId counts = reduce(OpKind::kReduceSum, groups.extents, std::array{along});
  const ValueId starts = one_after_another(counts);
  std::vector<int64_t> dims(groups.shape.size() - 1);
  std::iota(dims.begin(), dims.end(), 0);
  dims.back() += 1;
  const ValueId before =
      pointwise(OpKind::kSub, std::array{scan(OpKind::kScanSum, groups.extents, along, false), groups.extents});
  const ValueId places = pointwise(OpKind::kAdd, std::array{broadcast(starts, groups.shape, dims), before});
  const ValueId stored = combine(x, places, std::max(rows, groups.most), 2);
  const ValueId kept = that_fit(counts, starts, rows);
  return {partition(stored, starts, kept, outer, std::min(rows, groups.most * groups.shape[along])), starts, kept};
}

}  // namespace jf::ir
