// Other groupings of the rows of a nested value: they move, through an array in memory.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/integers.h"
#include "base/lists.h"
#include "ir/build.h"
#include "ir/ragged.h"
#include "ir/text.h"

namespace jf::ir {
namespace {

constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();

}  // namespace

// As many rows as the arrays that a value's ragged axis comes from have, where it comes from some.
int64_t Builder::rows_behind(ValueId x, int64_t axis) {
  const Axis ragged = fusion_.values[x].axes[axis];
  int64_t rows = 0;
  std::vector<ValueId> todo = {x};
  std::vector<bool> seen(fusion_.values.size(), false);
  while (!todo.empty()) {
    const ValueId id = todo.back();
    todo.pop_back();
    const Op* op = seen[id] ? nullptr : definition(id);
    seen[id] = true;
    if (op == nullptr || ragged_axis(fusion_.values[id]) < 0) continue;
    if (op->kind == OpKind::kPartition) {
      const std::vector<int64_t> own = rows_of(*op);
      for (size_t cut = 0; cut < own.size(); ++cut) {
        if (op->inputs[2 + 2 * cut] == ragged.extents) rows = std::max(rows, own[cut]);
      }
    }
    todo.insert(todo.end(), op->inputs.begin(), op->inputs.end());
  }
  return rows > 0 ? rows : ragged.extent * fusion_.values[ragged.extents].axes.back().extent;
}

// Of ragged axis `axis`, or of the only one. Whether axes stand as partition makes them: those that extents are of in
// front, the component before its rows.
Builder::Groups Builder::groups_of(ValueId x, const char* call, int64_t axis) {
  const Value nested = value(x, call);
  const std::vector<int> ragged = ragged_axes(nested);
  JF_REQUIRE(!ragged.empty(), "[", call, "] expected a nested value, got ", print_type(nested),
             "; partition makes one");
  if (ragged.size() == 1) axis = ragged[0];
  JF_REQUIRE(contains(ragged, axis), "[", call, "] ", nested.name, ", ", print_type(fusion_, nested),
             ", has several ragged axes; expected one of them, got ", axis);
  for (size_t i = 1; i < ragged.size(); ++i) {
    const std::vector<int64_t>&one = nested.axes[ragged[i - 1]].by, &other = nested.axes[ragged[i]].by;
    JF_REQUIRE(std::find_first_of(one.begin(), one.end(), other.begin(), other.end()) == one.end(), "[", call, "] ",
               nested.name, ", ", print_type(fusion_, nested), ", has pairs of rows: its ragged axes ", ragged[i - 1],
               " and ", ragged[i], " are of the same components; ", call, " the rows of one before they are paired");
  }
  bool in_order = true;
  for (const int each : ragged) {
    const std::vector<int64_t>& by = nested.axes[each].by;
    in_order = in_order && by.back() + 1 == each && (ragged.size() == 1 || by.size() == 1);
    for (size_t i = 0; by.size() > 1 && i < by.size(); ++i) in_order = in_order && by[i] == static_cast<int64_t>(i);
  }
  JF_REQUIRE(in_order, "[", call, "] ", nested.name, ", ", print_type(fusion_, nested),
             ragged.size() > 1 ? ": expected each ragged axis behind its component; transpose it"
                               : ": expected its rows behind their component, and the axes of extents in front; "
                                 "transpose it");
  const auto within = [&](const Axis& rows) {
    const std::vector<int64_t> own = shape(fusion_.values[rows.extents]);
    return pointwise(OpKind::kClamp, std::array{full(DType::kS32, own, {int64_t{0}}), rows.extents,
                                                full(DType::kS32, own, {rows.extent})});
  };
  Groups groups{axis, nested.axes[axis].extent, shape(fusion_.values[nested.axes[axis].extents]),
                within(nested.axes[axis]), rows_behind(x, axis)};
  for (const int each : ragged) {
    if (each == axis) continue;
    const int64_t most = nested.axes[each].extent;
    const ValueId extents = within(nested.axes[each]);
    const int64_t rows = std::max(rows_behind(x, each), most);
    groups.beside.push_back({each, most, rows, extents, one_after_another(extents, most, rows)});
  }
  return groups;
}

int64_t Builder::Groups::first() const {
  return axis - 1 - std::count_if(beside.begin(), beside.end(), [&](const Beside& other) { return other.axis < axis; });
}

// All ragged axes combined, that of `groups` as `starts` and `rows` say.
ValueId Builder::combined(ValueId x, const Groups& groups, ValueId starts, int64_t rows) {
  std::vector<ValueId> all_starts;
  std::vector<int64_t> all_rows;
  for (const Groups::Beside& other : groups.beside) {
    all_starts.push_back(other.starts);
    all_rows.push_back(other.rows);
  }
  const int64_t before = groups.axis - 1 - groups.first();
  all_starts.insert(all_starts.begin() + before, starts);
  all_rows.insert(all_rows.begin() + before, rows);
  return combine(x, all_starts, all_rows);
}

// The other ragged axes again, those behind that of `groups` by `more` axes further.
ValueId Builder::partitioned_beside(ValueId x, const Groups& groups, int64_t more) {
  for (const Groups::Beside& other : groups.beside) {
    const int64_t at = other.axis - 1 + (other.axis > groups.axis ? more : 0);
    x = partition(x, other.starts, that_fit(other.extents, other.starts, other.rows), at, other.most);
  }
  return x;
}

ValueId Builder::times(ValueId x, int64_t factor) {
  return pointwise(OpKind::kMul, std::array{x, full(DType::kS32, shape(fusion_.values[x]), {factor})});
}

// Where components of at most `most` rows begin that lie one after another; at `rows` where those before fill them.
ValueId Builder::one_after_another(ValueId extents, int64_t most, int64_t rows) {
  const std::vector<int64_t> own = shape(fusion_.values[extents]);
  const int64_t last = std::ssize(own) - 1;
  const auto all = [&](int64_t number) { return full(DType::kS32, own, {number}); };
  const ValueId sums = pointwise(OpKind::kSub, std::array{scan(OpKind::kScanSum, extents, last, false), extents});
  const ValueId starts = pointwise(OpKind::kMin, std::array{sums, all(rows)});
  if (most <= kMostRows / std::max<int64_t>(own[last], 1)) return starts;
  // The first sum that wraps is negative; later ones may be anything.
  const ValueId wrapped = pointwise(OpKind::kLt, std::array{sums, all(0)});
  return scan(OpKind::kScanMax, pointwise(OpKind::kSelect, std::array{wrapped, all(rows), starts}), last, false);
}

// What fits: the rest of components that share rows, or go on behind an array, is cut off.
ValueId Builder::that_fit(ValueId extents, ValueId starts, int64_t rows) {
  const std::vector<int64_t> own = shape(fusion_.values[extents]);
  const ValueId left = pointwise(OpKind::kSub, std::array{full(DType::kS32, own, {rows}), starts});
  return pointwise(OpKind::kMax, std::array{full(DType::kS32, own, {int64_t{0}}),
                                            pointwise(OpKind::kMin, std::array{extents, left})});
}

Builder::Nested Builder::split(ValueId x, int64_t axis, int64_t factor) {
  const Groups groups = groups_of(x, "split", axis);
  JF_REQUIRE(axis == groups.axis, "[split] expected ragged axis ", groups.axis, " of ",
             print_type(fusion_, fusion_.values[x]), ", got ", axis, "; reshape splits dense axes");
  JF_REQUIRE(factor >= 1, "[split] expected a factor from 1 on, got ", factor);
  // Each component has at most one part that is not full; where there is none, there is room for one all the same.
  const int64_t parts = std::max(groups.rows / factor + groups.shape.back(), divide_up(groups.most, factor));
  JF_REQUIRE(parts <= kMostRows / factor, "[split] ", parts, " parts of ", factor, " rows do not fit in s32");
  const ValueId filled =
      pointwise(OpKind::kAdd, std::array{groups.extents, full(DType::kS32, groups.shape, {factor - 1})});
  const ValueId counts = pointwise(OpKind::kDiv, std::array{filled, full(DType::kS32, groups.shape, {factor})});
  const ValueId starts = one_after_another(counts, divide_up(groups.most, factor), parts);
  const ValueId stored = combined(x, groups, times(starts, factor), std::max(parts * factor, groups.most));
  std::vector<int64_t> to = shape(fusion_.values[stored]);
  const int64_t at = groups.first();
  to[at] = parts;
  to.insert(to.begin() + at + 1, factor);
  JF_CHECK(product(to) == elements(fusion_.values[stored]), "parts of rows and their storage differ");
  const int64_t most = std::min(divide_up(groups.most, factor), parts);
  const ValueId kept = that_fit(counts, starts, parts);
  return {partitioned_beside(partition(reshape(stored, to), starts, kept, at, most), groups, 1), starts, kept};
}

Builder::Nested Builder::merge(ValueId x, int64_t first, int64_t second) {
  const std::vector<int> ragged = ragged_axes(value(x, "merge"));
  const bool second_is = contains(ragged, second);
  const Groups groups = groups_of(x, "merge", second_is ? second : first);
  const std::vector<int64_t> from = shape(fusion_.values[x]);
  const int64_t component = groups.axis - 1, outer = groups.axis - 2;
  if (first == component && second == groups.axis) {
    const int64_t all = std::max(groups.rows, groups.most);
    const ValueId starts = one_after_another(groups.extents, groups.most, all);
    const ValueId rows = combined(x, groups, starts, all);
    return {partitioned_beside(rows, groups, -1), starts, groups.extents};
  }
  const bool is_component = std::any_of(groups.beside.begin(), groups.beside.end(),
                                        [&](const Groups::Beside& other) { return other.axis - 1 == second; });
  if (first == groups.axis && second == groups.axis + 1 && second < std::ssize(from) && !is_component) {
    const int64_t size = from[second];
    JF_REQUIRE(groups.rows <= kMostRows / std::max<int64_t>(size, 1), "[merge] ", groups.rows, " rows times ", size,
               " do not fit in s32");
    const int64_t all = std::max(groups.rows, groups.most);
    const ValueId starts = one_after_another(groups.extents, groups.most, all);
    const ValueId stored = combined(x, groups, starts, all);
    std::vector<int64_t> to = shape(fusion_.values[stored]);
    const int64_t at = groups.first();
    to[at] *= size;
    to.erase(to.begin() + at + 1);
    const ValueId begins = times(starts, size), counts = times(that_fit(groups.extents, starts, groups.rows), size);
    const ValueId merged = partition(reshape(stored, to), begins, counts, at, groups.most * size);
    return {partitioned_beside(merged, groups, -1), begins, counts};
  }
  JF_REQUIRE(groups.shape.size() > 1 && first == outer && second == groups.axis, "[merge] axes (", first, ", ", second,
             ") of ", print_type(fusion_, fusion_.values[x]),
             " are neither (component, ragged), (ragged, next dense) nor (last outer axis of extents, ragged)");
  // The rows of one component from each outer index, one after the other.
  const int64_t along = std::ssize(groups.shape) - 2, rows = groups.rows * groups.shape[along];
  JF_REQUIRE(rows <= kMostRows, "[merge] ", groups.shape[along], " times ", groups.rows, " rows do not fit in s32");
  const ValueId counts = reduce(OpKind::kReduceSum, groups.extents, std::array{along});
  const ValueId starts = one_after_another(counts, groups.most * groups.shape[along], rows);
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
