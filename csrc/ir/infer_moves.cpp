// Ops that compute nothing: they move, repeat or leave out elements.
#include <algorithm>

#include "base/lists.h"
#include "ir/inference.h"
#include "ir/ragged.h"

namespace jf::ir {
namespace {

std::string print_list(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t n : numbers) text += cat(text.empty() ? "" : ",", n);
  return cat("[", text, "]");
}

// Whether so many elements, from a start inside of the axis on, lie inside.
bool has_room(int64_t start, int64_t stride, int64_t count, int64_t size) {
  if (stride == 0 || stride == INT64_MIN || std::abs(stride) > std::max<int64_t>(size, 1)) return false;
  return count == 0 || count - 1 <= (stride > 0 ? size - 1 - start : start) / std::abs(stride);
}

}  // namespace

Value Inference::broadcast(const Value& stated) const {
  const Dims& d = get<Dims>("dims=[...]");
  const Value& x = in(0);
  JF_REQUIRE(d.dims.size() == x.axes.size(), "[broadcast] expected one result axis for each axis of ", type(0),
             ", got ", d.dims.size());
  Value result{"", x.dtype, stated.axes};
  for (Axis& axis : result.axes) axis = {axis.extent, AxisKind::kBroadcast};
  for (size_t i = 0; i < d.dims.size(); ++i) {
    JF_REQUIRE(
        d.dims[i] >= 0 && d.dims[i] < static_cast<int64_t>(result.axes.size()) && (i == 0 || d.dims[i] > d.dims[i - 1]),
        "[broadcast] dims must increase and stay below rank ", result.axes.size(), ", got dims[", i, "]=", d.dims[i]);
    Axis& axis = result.axes[d.dims[i]];
    JF_REQUIRE(x.axes[i].extent == axis.extent || x.axes[i].extent == 1, "[broadcast] axis ", i, " of ", type(0),
               " has extent ", x.axes[i].extent, "; result axis ", d.dims[i], " has ", axis.extent,
               ": they must be equal, or the operand's 1");
    if (x.axes[i].extent == axis.extent) axis = x.axes[i];
  }
  renumber_by(result.axes, d.dims);
  return result;
}

Value Inference::transpose() const {
  const Dims& d = get<Dims>("dims=[...]");
  const Value& x = in(0);
  std::vector<int64_t> sorted = d.dims;
  std::sort(sorted.begin(), sorted.end());
  bool permutation = sorted.size() == x.axes.size();
  for (size_t i = 0; permutation && i < sorted.size(); ++i) permutation = sorted[i] == static_cast<int64_t>(i);
  JF_REQUIRE(permutation, "[transpose] dims must be a permutation of the ", x.axes.size(), " axes of ", type(0));
  Value result{"", x.dtype, {}};
  std::vector<int64_t> to(d.dims.size());
  for (size_t i = 0; i < d.dims.size(); ++i) to[d.dims[i]] = static_cast<int64_t>(i);
  for (int64_t dim : d.dims) result.axes.push_back(x.axes[dim]);
  renumber_by(result.axes, to);
  return result;
}

void Inference::check_inside(const Slice& s, const std::vector<int64_t>& counts) const {
  const Value& x = in(0);
  const size_t rank = x.axes.size();
  JF_REQUIRE(s.starts.size() == rank && s.strides.size() == rank && counts.size() == rank, "[", op.name,
             "] needs a start, a stride and a result axis for each axis of ", type(0));
  for (size_t i = 0; i < rank; ++i) {
    const int64_t extent = counts[i], size = x.axes[i].extent;
    const bool inside = extent >= 0 && s.starts[i] >= 0 && (extent == 0 || s.starts[i] < size) &&
                        has_room(s.starts[i], s.strides[i], extent, size);
    JF_REQUIRE(inside, "[", op.name, "] axis ", i, " of ", type(0), ": ", extent, " elements from ", s.starts[i],
               " on, ", s.strides[i], " apart, do not lie inside");
  }
}

Value Inference::slice(const Value& stated) const {
  const Value& x = in(0);
  check_inside(get<Slice>("starts=[...], strides=[...]"), shape(stated));
  Value result{"", x.dtype, x.axes};
  for (size_t i = 0; i < x.axes.size(); ++i) result.axes[i].extent = stated.axes[i].extent;
  return result;
}

Value Inference::pad(const Value& stated) const {
  const Pad& p = get<Pad>("starts=[...], strides=[...], low=[...], counts=[...]");
  const Value& x = in(0);
  check_inside(p.from, p.counts);
  JF_REQUIRE(p.low.size() == x.axes.size() && stated.axes.size() == x.axes.size(),
             "[pad] needs a low end and a result axis for each axis of ", type(0));
  Value result{"", x.dtype, x.axes};
  for (size_t i = 0; i < x.axes.size(); ++i) {
    const int64_t extent = stated.axes[i].extent;
    JF_REQUIRE(p.low[i] >= 0 && p.low[i] <= extent && p.counts[i] <= extent - p.low[i], "[pad] axis ", i, " of ",
               type(0), ": ", p.counts[i], " elements from ", p.low[i], " on do not fit into an axis of ", extent);
    result.axes[i].extent = extent;
    if (p.low[i] != 0 || p.counts[i] != extent) result.axes[i].kind = AxisKind::kIteration;
  }
  return result;
}

Value Inference::place() const {
  const Place& p = get<Place>("starts=[...], shape=[...]");
  const Value& x = in(0);
  bool inside = p.starts.size() == x.axes.size() && p.shape.size() == x.axes.size();
  for (size_t i = 0; inside && i < x.axes.size(); ++i) {
    inside = p.starts[i] >= 0 && p.starts[i] <= p.shape[i] && x.axes[i].extent <= p.shape[i] - p.starts[i];
  }
  JF_REQUIRE(inside, "[place] ", type(0), " from ", print_list(p.starts), " on is no part of an array of shape ",
             print_list(p.shape));
  Value result{"", x.dtype, x.axes};
  for (Axis& axis : result.axes) axis.kind = AxisKind::kIteration;
  return result;
}

// The operands fill the result along one axis, in their order.
Value Inference::concat() const {
  const Dims& d = get<Dims>("dims=[axis]");
  Value result{"", in(0).dtype, {}};
  int64_t filled = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Op* op = definition(fusion, inputs[i]);
    const Place* p = op == nullptr ? nullptr : std::get_if<Place>(&op->attribute);
    JF_REQUIRE(p != nullptr, "[concat] operand ", i, " must be the result of place");
    if (i == 0) {
      result.axes = axes_of(p->shape);
      JF_REQUIRE(d.dims.size() == 1 && d.dims[0] >= 0 && d.dims[0] < static_cast<int64_t>(result.axes.size()),
                 "[concat] expected one axis below rank ", result.axes.size());
    }
    JF_REQUIRE(in(i).dtype == result.dtype, "[concat] operands must have equal dtypes, got ", type(0), " and ",
               type(i));
    for (size_t a = 0; a < result.axes.size(); ++a) {
      const bool along = static_cast<int64_t>(a) == d.dims[0];
      const bool fits = p->shape == shape(result) && p->starts[a] == (along ? filled : 0) &&
                        (along || in(i).axes[a].extent == result.axes[a].extent);
      JF_REQUIRE(fits, "[concat] operand ", i, ", ", type(i), " from ", print_list(p->starts),
                 " on, does not go on from ", filled, " along axis ", d.dims[0], " of ", print_list(p->shape));
    }
    filled += in(i).axes[d.dims[0]].extent;
  }
  JF_REQUIRE(filled == result.axes[d.dims[0]].extent, "[concat] the operands fill ", filled, " of ",
             result.axes[d.dims[0]].extent, " elements of axis ", d.dims[0]);
  return result;
}

Value Inference::squeeze() const {
  const Dims& d = get<Dims>("dims=[...]");
  const Value& x = in(0);
  Value result{"", x.dtype, {}};
  std::vector<int64_t> to;
  for (size_t i = 0; i < x.axes.size(); ++i) {
    to.push_back(static_cast<int64_t>(result.axes.size()));
    if (!contains(d.dims, static_cast<int64_t>(i))) {
      result.axes.push_back(x.axes[i]);
    } else {
      JF_REQUIRE(x.axes[i].extent == 1, "[squeeze] axis ", i, " of ", type(0), " has extent ", x.axes[i].extent,
                 "; only axes of extent 1 can go");
    }
  }
  renumber_by(result.axes, to);
  JF_REQUIRE(result.axes.size() + d.dims.size() == x.axes.size(), "[squeeze] dims name an axis twice or beyond rank ",
             x.axes.size());
  return result;
}

Value Inference::reshape(const Value& stated) const {
  JF_REQUIRE(std::holds_alternative<std::monostate>(attribute), "[reshape] takes its operand alone, no {...}");
  Value result{"", in(0).dtype, stated.axes};
  for (Axis& axis : result.axes) axis.kind = AxisKind::kIteration;
  JF_REQUIRE(elements(result) == elements(in(0)), "[reshape] ", type(0), " has ", elements(in(0)), " elements, ",
             print_type(result), " has ", elements(result));
  return result;
}

Value Inference::take(const Value& stated) const {
  const Take& t = get<Take>("axes=[...], limits=[...], dims=[...], starts=[...], strides=[...]");
  const Value& x = in(0);
  const size_t rank = x.axes.size();
  JF_REQUIRE(t.dims.size() == rank && t.starts.size() == rank && t.strides.size() == rank,
             "[take] needs a dim, a start and a stride for each axis of ", type(0));
  JF_REQUIRE(t.axes.size() + 1 == inputs.size() && t.limits.size() == t.axes.size(),
             "[take] needs an axis and a limit for each of ", inputs.size() - 1, " indices");
  Value result{"", x.dtype, stated.axes};
  for (Axis& axis : result.axes) axis.kind = AxisKind::kBroadcast;
  std::vector<int64_t> last(rank, 0);
  for (size_t k = 0; k < t.axes.size(); ++k) {
    const int64_t axis = t.axes[k];
    JF_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(rank) && std::count(t.axes.begin(), t.axes.end(), axis) == 1 &&
                   t.limits[k] >= 0,
               "[take] index ", k, " needs an axis of its own of ", type(0), " and a limit from 0 on, got axis ", axis,
               " and limit ", t.limits[k]);
    JF_REQUIRE(is_integer(in(k + 1).dtype) && shape(in(k + 1)) == shape(stated), "[take] index ", k,
               " must be integers of the shape of ", print_type(result), ", got ", type(k + 1));
    last[axis] = t.limits[k];
    for (size_t a = 0; a < result.axes.size(); ++a) {
      if (in(k + 1).axes[a].kind == AxisKind::kIteration) result.axes[a].kind = AxisKind::kIteration;
    }
  }
  for (size_t a = 0; a < rank; ++a) {
    const int64_t dim = t.dims[a];
    const bool known = dim >= -1 && dim < static_cast<int64_t>(result.axes.size()) &&
                       (dim < 0 || std::count(t.dims.begin(), t.dims.end(), dim) == 1);
    JF_REQUIRE(known, "[take] dims of ", type(0), " must be axes of the result, each once, or -1, got ", dim);
    const int64_t size = x.axes[a].extent, window = dim < 0 ? 1 : result.axes[dim].extent;
    const bool inside = t.starts[a] >= 0 && t.starts[a] <= size && last[a] <= size && window <= size + 1 &&
                        (elements(result) == 0 ||
                         (t.starts[a] < size - last[a] && has_room(t.starts[a], t.strides[a], window, size - last[a])));
    JF_REQUIRE(inside, "[take] axis ", a, " of ", type(0), ": ", window, " elements from ", t.starts[a], " on, ",
               t.strides[a], " apart, with an index up to ", last[a], ", do not lie inside");
    if (dim >= 0) result.axes[dim].kind = AxisKind::kIteration;
  }
  return result;
}

Value Inference::copy() const {
  JF_REQUIRE(std::holds_alternative<std::monostate>(attribute), "[copy] takes its operand alone, no {...}");
  return {"", in(0).dtype, in(0).axes};
}

Value Inference::spread(const Value& stated) const {
  const Dims& d = get<Dims>("dims=[axis]");
  Value result{"", in(0).dtype, in(0).axes};
  JF_REQUIRE(d.dims.size() == 1 && d.dims[0] >= 0 && d.dims[0] < static_cast<int64_t>(result.axes.size()) &&
                 stated.axes.size() == result.axes.size(),
             "[spread] expected one axis below the rank of ", type(0));
  Axis& axis = result.axes[d.dims[0]];
  const int64_t extent = stated.axes[d.dims[0]].extent;
  JF_REQUIRE(axis.extent > 0 && axis.extent <= extent, "[spread] axis ", d.dims[0], " of ", type(0), " cannot become ",
             extent, " elements; expected as many or more");
  axis = {extent};
  return result;
}

}  // namespace jf::ir
