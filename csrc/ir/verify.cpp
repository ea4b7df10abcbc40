#include "ir/verify.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/integers.h"
#include "ir/ragged.h"
#include "ir/text.h"

namespace jf::ir {
namespace {

constexpr size_t kMaxRank = 32;
// Leaves room for what splits round up and for sums of sizes in 64 bits.
constexpr int64_t kMaxBytes = int64_t{1} << 60;

std::string print_list(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t n : numbers) text += cat(text.empty() ? "" : ",", n);
  return cat("[", text, "]");
}

// One op under inspection; errors begin with its name, as the caller wrote it.
struct Inference {
  const Fusion& fusion;
  const OpInfo& op;
  const std::vector<ValueId>& inputs;
  const Attribute& attribute;

  const Value& in(size_t i) const { return fusion.values[inputs[i]]; }
  std::string type(size_t i) const { return print_type(fusion, in(i)); }

  template <class T>
  const T& get(const char* what) const {
    const T* held = std::get_if<T>(&attribute);
    JF_REQUIRE(held, "[", op.name, "] needs {", what, "}");
    return *held;
  }

  Value constant(const Value& stated) const {
    const Constant& c = get<Constant>("value=...");
    JF_REQUIRE(stated.axes.empty(), "[constant] must be a scalar, got ", print_type(stated), "; broadcast it instead");
    JF_REQUIRE(std::holds_alternative<double>(c.value) == is_float(stated.dtype), "[constant] a value of dtype ",
               name(stated.dtype), " needs ", is_float(stated.dtype) ? "a number with a point" : "an integer");
    return stated;
  }

  Value iota(const Value& stated) const {
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

  Value broadcast(const Value& stated) const {
    const Dims& d = get<Dims>("dims=[...]");
    const Value& x = in(0);
    JF_REQUIRE(d.dims.size() == x.axes.size(), "[broadcast] expected one result axis for each axis of ", type(0),
               ", got ", d.dims.size());
    Value result{"", x.dtype, stated.axes};
    for (Axis& axis : result.axes) axis = {axis.extent, AxisKind::kBroadcast};
    for (size_t i = 0; i < d.dims.size(); ++i) {
      JF_REQUIRE(d.dims[i] >= 0 && d.dims[i] < static_cast<int64_t>(result.axes.size()) &&
                     (i == 0 || d.dims[i] > d.dims[i - 1]),
                 "[broadcast] dims must increase and stay below rank ", result.axes.size(), ", got dims[", i,
                 "]=", d.dims[i]);
      Axis& axis = result.axes[d.dims[i]];
      JF_REQUIRE(x.axes[i].extent == axis.extent || x.axes[i].extent == 1, "[broadcast] axis ", i, " of ", type(0),
                 " has extent ", x.axes[i].extent, "; result axis ", d.dims[i], " has ", axis.extent,
                 ": they must be equal, or the operand's 1");
      if (x.axes[i].extent == axis.extent) axis = x.axes[i];
    }
    renumber_by(result.axes, d.dims);
    return result;
  }

  Value transpose() const {
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

  void check_inside(const Slice& s, const std::vector<int64_t>& counts) const {
    const Value& x = in(0);
    const size_t rank = x.axes.size();
    JF_REQUIRE(s.starts.size() == rank && s.strides.size() == rank && counts.size() == rank, "[", op.name,
               "] needs a start, a stride and a result axis for each axis of ", type(0));
    for (size_t i = 0; i < rank; ++i) {
      const int64_t extent = counts[i], size = x.axes[i].extent;
      const bool inside =
          s.starts[i] >= 0 && s.strides[i] > 0 && s.strides[i] <= std::max<int64_t>(size, 1) && extent >= 0 &&
          (extent == 0 || (s.starts[i] < size && extent - 1 <= (size - 1 - s.starts[i]) / s.strides[i]));
      JF_REQUIRE(inside, "[", op.name, "] axis ", i, " of ", type(0), ": ", extent, " elements from ", s.starts[i],
                 " on, ", s.strides[i], " apart, do not lie inside");
    }
  }

  Value slice(const Value& stated) const {
    const Value& x = in(0);
    check_inside(get<Slice>("starts=[...], strides=[...]"), shape(stated));
    Value result{"", x.dtype, x.axes};
    for (size_t i = 0; i < x.axes.size(); ++i) result.axes[i].extent = stated.axes[i].extent;
    return result;
  }

  Value pad(const Value& stated) const {
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

  Value place() const {
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
  Value concat() const {
    const Dims& d = get<Dims>("dims=[axis]");
    Value result{"", in(0).dtype, {}};
    int64_t filled = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Op* op = nullptr;
      for (const Op& other : fusion.ops) {
        if (other.output == inputs[i]) op = &other;
      }
      const Place* p = op == nullptr ? nullptr : std::get_if<Place>(&op->attribute);
      JF_REQUIRE(p != nullptr, "[concat] operand ", i, " must be the result of place");
      if (i == 0) {
        for (int64_t extent : p->shape) result.axes.push_back({extent});
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

  Value squeeze() const {
    const Dims& d = get<Dims>("dims=[...]");
    const Value& x = in(0);
    Value result{"", x.dtype, {}};
    std::vector<int64_t> to;
    for (size_t i = 0; i < x.axes.size(); ++i) {
      to.push_back(static_cast<int64_t>(result.axes.size()));
      if (std::find(d.dims.begin(), d.dims.end(), static_cast<int64_t>(i)) == d.dims.end()) {
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

  Value reshape(const Value& stated) const {
    JF_REQUIRE(std::holds_alternative<std::monostate>(attribute), "[reshape] takes its operand alone, no {...}");
    Value result{"", in(0).dtype, stated.axes};
    for (Axis& axis : result.axes) axis.kind = AxisKind::kIteration;
    JF_REQUIRE(elements(result) == elements(in(0)), "[reshape] ", type(0), " has ", elements(in(0)), " elements, ",
               print_type(result), " has ", elements(result));
    return result;
  }

  Value take(const Value& stated) const {
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
      JF_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(rank) &&
                     std::count(t.axes.begin(), t.axes.end(), axis) == 1 && t.limits[k] >= 0,
                 "[take] index ", k, " needs an axis of its own of ", type(0), " and a limit from 0 on, got axis ",
                 axis, " and limit ", t.limits[k]);
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
      const bool inside =
          t.starts[a] >= 0 && t.starts[a] <= size && t.strides[a] > 0 && t.strides[a] <= std::max<int64_t>(size, 1) &&
          last[a] <= size && window <= size + 1 &&
          (elements(result) == 0 || last[a] + t.starts[a] < size - (window > 1 ? t.strides[a] * (window - 1) : 0));
      JF_REQUIRE(inside, "[take] axis ", a, " of ", type(0), ": ", window, " elements from ", t.starts[a], " on, ",
                 t.strides[a], " apart, with an index up to ", last[a], ", do not lie inside");
      if (dim >= 0) result.axes[dim].kind = AxisKind::kIteration;
    }
    return result;
  }

  Value search() const {
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

  Value copy() const {
    JF_REQUIRE(std::holds_alternative<std::monostate>(attribute), "[copy] takes its operand alone, no {...}");
    return {"", in(0).dtype, in(0).axes};
  }

  Value reduce() const {
    const Reduce& r = get<Reduce>("dims=[...]");
    const Value& x = in(0);
    JF_REQUIRE(!r.dims.empty(), "[", op.name, "] expected at least one axis to fold");
    for (size_t i = 0; i < r.dims.size(); ++i) {
      JF_REQUIRE(
          r.dims[i] >= 0 && r.dims[i] < static_cast<int64_t>(x.axes.size()) && (i == 0 || r.dims[i] > r.dims[i - 1]),
          "[", op.name, "] dims must increase and stay below the rank of ", type(0), ", got dims[", i, "]=", r.dims[i]);
    }
    const int64_t extent = x.axes[r.dims[0]].extent;
    JF_REQUIRE(r.parts >= 0 && r.parts <= extent, "[", op.name, "] expected 1 to ", extent, " parts of axis ",
               r.dims[0], " of ", type(0), ", got ", r.parts);
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

  Value spread(const Value& stated) const {
    const Dims& d = get<Dims>("dims=[axis]");
    Value result{"", in(0).dtype, in(0).axes};
    JF_REQUIRE(d.dims.size() == 1 && d.dims[0] >= 0 && d.dims[0] < static_cast<int64_t>(result.axes.size()) &&
                   stated.axes.size() == result.axes.size(),
               "[spread] expected one axis below the rank of ", type(0));
    Axis& axis = result.axes[d.dims[0]];
    const int64_t extent = stated.axes[d.dims[0]].extent;
    JF_REQUIRE(axis.extent > 0 && axis.extent <= extent, "[spread] axis ", d.dims[0], " of ", type(0),
               " cannot become ", extent, " elements; expected as many or more");
    axis = {extent};
    return result;
  }

  // A value that repeats along the axis does not do so once it is scanned.
  Value scan() const {
    const Scan& s = get<Scan>("axis=...");
    Value result{"", in(0).dtype, in(0).axes};
    JF_REQUIRE(s.axis >= 0 && s.axis < static_cast<int64_t>(result.axes.size()), "[", op.name,
               "] expected an axis below the rank of ", type(0), ", got ", s.axis);
    result.axes[s.axis].kind = AxisKind::kIteration;
    const int64_t extent = result.axes[s.axis].extent;
    JF_REQUIRE(s.parts >= 0 && s.parts <= extent, "[", op.name, "] expected 1 to ", extent, " parts of axis ", s.axis,
               " of ", type(0), ", got ", s.parts);
    return result;
  }

  void check_operand_types() const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const DType t = in(i).dtype;
      const bool logical = is_integer(t) || t == DType::kPred;
      const bool ok = op.operands == OperandTypes::kAny ||
                      (op.operands == OperandTypes::kNumber && t != DType::kPred) ||
                      (op.operands == OperandTypes::kFloating && is_float(t)) ||
                      (op.operands == OperandTypes::kInteger && is_integer(t)) ||
                      (op.operands == OperandTypes::kLogical && logical);
      JF_REQUIRE(ok, "[", op.name, "] operand ", i, " has unsupported dtype ", name(t));
    }
  }

  Value pointwise(const Value& stated) const {
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
    }
    if (op.kind == OpKind::kBitcast) {
      JF_REQUIRE(size_of(result.dtype) == size_of(in(0).dtype) && result.dtype != DType::kPred,
                 "[bitcast] needs a number of equal size, got ", name(in(0).dtype), " to ", name(result.dtype));
    }
    return result;
  }

  Value grouped(const Value& stated) const {
    const Grouped& g = get<Grouped>("mode=...");
    const bool numbers = g.weights == GroupedWeights::kNumbers;
    const bool scaled = g.scales != GroupedScales::kNone;
    JF_REQUIRE(scaled == is_float8(in(0).dtype) && scaled == is_float8(in(1).dtype),
               "[grouped_matmul] 8-bit floats need scales, and only they have any, got ", type(0), " and ", type(1));
    JF_REQUIRE(scaled || !numbers || in(0).dtype == in(1).dtype,
               "[grouped_matmul] lhs and rhs must have one dtype, got ", type(0), " and ", type(1));
    const size_t indices = inputs.size() - (scaled ? 2 : 0);
    JF_REQUIRE(indices == 3 || indices == 4, "[grouped_matmul] expected lhs, rhs, extents[, starts]",
               scaled ? ", scales of lhs, scales of rhs" : "", ", got ", inputs.size(), " operands");
    for (size_t i = 2; i < indices; ++i) {
      JF_REQUIRE(in(i).dtype == DType::kS32 && in(i).axes.size() == 1, "[grouped_matmul] ",
                 i == 2 ? "extents" : "starts", " must be s32[groups], got ", type(i));
      JF_REQUIRE(shape(in(i)) == shape(in(2)), "[grouped_matmul] starts must have the shape of extents, got ", type(3));
    }
    if (!numbers) return packed_weights(g, stated);
    const std::vector<int64_t> a = shape(in(0)), b = shape(in(1));
    const int64_t groups = in(2).axes[0].extent;
    const bool rank_ok = g.mode == GroupedMode::kRows          ? a.size() == 2 && b.size() == 3
                         : g.mode == GroupedMode::kContraction ? a.size() == 2 && b.size() == 2
                                                               : a.size() == 3 && b.size() == 3;
    JF_REQUIRE(rank_ok, "[grouped_matmul] ranks do not fit the mode: lhs ", type(0), ", rhs ", type(1));
    const int64_t k = b.size() == 3 ? b[g.transpose_rhs ? 2 : 1] : 0, n = b.back();
    Value result{"", stated.dtype, {}};
    const int64_t columns = b.size() == 3 && g.transpose_rhs ? b[1] : n;
    if (scaled) {
      JF_REQUIRE(g.mode == GroupedMode::kRows && g.transpose_rhs && is_float(stated.dtype) && !is_float8(stated.dtype),
                 "[grouped_matmul] 8-bit floats need mode=rows transpose_rhs and a wider float as the result");
      const auto blocks = [](int64_t size) { return (size + kScaleBlock - 1) / kScaleBlock; };
      const bool rows = g.scales == GroupedScales::kRows;
      const std::vector<int64_t> of_lhs = rows ? std::vector{a[0]} : std::vector{a[0], blocks(k)};
      const std::vector<int64_t> of_rhs =
          rows ? std::vector{groups, columns} : std::vector{groups, blocks(columns), blocks(k)};
      JF_REQUIRE(in(indices).dtype == DType::kF32 && in(indices + 1).dtype == DType::kF32 &&
                     shape(in(indices)) == of_lhs && shape(in(indices + 1)) == of_rhs,
                 "[grouped_matmul] scales must be f32 for each ", rows ? "row and column" : "block of 128", ", got ",
                 type(indices), " and ", type(indices + 1));
    }
    switch (g.mode) {
      case GroupedMode::kRows:
        JF_REQUIRE(b[0] == groups, "[grouped_matmul] rhs has ", b[0], " groups but extents has ", groups);
        JF_REQUIRE(a[1] == k, "[grouped_matmul] lhs ", type(0), " and rhs ", type(1), " differ in the contracted axis");
        result.axes = {{a[0]}, {columns}};
        break;
      case GroupedMode::kContraction:
        JF_REQUIRE(a[0] == b[0], "[grouped_matmul] lhs ", type(0), " and rhs ", type(1), " differ in rows");
        JF_REQUIRE(!g.transpose_rhs, "[grouped_matmul] transpose_rhs does not apply to mode contraction");
        result.axes = {{groups}, {a[1]}, {n}};
        break;
      case GroupedMode::kBatch:
        JF_REQUIRE(a[0] == b[0] && a[2] == k, "[grouped_matmul] lhs ", type(0), " and rhs ", type(1), " do not fit");
        result.axes = {{a[0]}, {a[1]}, {columns}};
        break;
    }
    return result;
  }

  // rhs [groups, columns / 128, k / 64, words of a piece]: codes, scales and a factor, see grouped/cuda/four_bit.cuh.
  Value packed_weights(const Grouped& g, const Value& stated) const {
    constexpr int64_t kColumns = 128, kDepth = 64;
    const bool two_words = g.weights == GroupedWeights::kNvfp4 || g.weights == GroupedWeights::kInt4By32;
    const int64_t words = kColumns * kDepth / 8 + (two_words ? 2 : 1) * kColumns / 2 + 4;
    const std::vector<int64_t> a = shape(in(0));
    JF_REQUIRE(g.mode == GroupedMode::kRows && !g.transpose_rhs && a.size() == 2 && in(0).dtype == DType::kBF16,
               "[grouped_matmul] weights ", name(g.weights), " need mode rows and lhs bf16[m, k], got ", type(0));
    JF_REQUIRE(g.columns >= 0, "[grouped_matmul] columns must not be negative, got ", g.columns);
    const std::vector<int64_t> expected = {in(2).axes[0].extent, divide_up(g.columns, kColumns),
                                           divide_up(a[1], kDepth), words};
    JF_REQUIRE(in(1).dtype == DType::kU32 && shape(in(1)) == expected, "[grouped_matmul] expected weights ",
               name(g.weights), " as u32[", expected[0], ",", expected[1], ",", expected[2], ",", expected[3],
               "], got ", type(1));
    return {"", stated.dtype, {{a[0]}, {g.columns}}};
  }
};

void check_name(const std::string& name, std::set<std::string>& names) {
  JF_REQUIRE(name == identifier(name), "[verify] '", name, "' is not an identifier");
  JF_REQUIRE(names.insert(name).second, "[verify] the name '", name, "' is defined twice");
}

void check_size(const Value& value) {
  int64_t bytes = size_of(value.dtype);
  for (const Axis& axis : value.axes) {
    const bool fits = !__builtin_mul_overflow(bytes, std::max<int64_t>(axis.extent, 1), &bytes) && bytes <= kMaxBytes;
    JF_REQUIRE(fits, "[verify] ", value.name, " is ", print_type(value), "; expected at most ", kMaxBytes, " bytes");
  }
}

}  // namespace

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
  for (ValueId id : inputs) {
    const bool takes = moves_float8(kind) || kind == OpKind::kGroupedMatmul;
    JF_REQUIRE(takes || !is_float8(fusion.values[id].dtype), "[", op.name, "] does not take 8-bit floats, got ",
               print_type(fusion.values[id]), "; convert them to f32");
  }
  JF_REQUIRE(moves_float8(kind) || !is_float8(stated.dtype), "[", op.name, "] cannot make 8-bit floats");
  JF_REQUIRE(stated.axes.size() <= kMaxRank, "[", op.name, "] rank ", stated.axes.size(), " is above the limit ",
             kMaxRank);
  for (const Axis& axis : stated.axes) {
    JF_REQUIRE(axis.extent >= 0, "[", op.name, "] axis extents must not be negative, got ", axis.extent);
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

void verify(const Fusion& fusion) {
  const auto count = static_cast<ValueId>(fusion.values.size());
  auto in_range = [&](ValueId id) { return id >= 0 && id < count; };
  std::set<std::string> names;
  check_name(fusion.name, names);
  for (const Value& value : fusion.values) check_size(value);
  std::vector<bool> defined(count, false);
  for (ValueId id : fusion.inputs) {
    JF_REQUIRE(in_range(id) && !defined[id], "[verify] input ", id, " is unknown or listed twice");
    check_name(fusion.values[id].name, names);
    JF_REQUIRE(ragged_axis(fusion.values[id]) < 0, "[verify] input ", fusion.values[id].name, " is ",
               print_type(fusion, fusion.values[id]), ", nested; make the array an input and partition it");
    defined[id] = true;
  }
  for (const Op& op : fusion.ops) {
    for (ValueId id : op.inputs) {
      JF_REQUIRE(in_range(id) && defined[id], "[verify] ", info(op.kind).name, " uses value ", id,
                 " before it is defined");
    }
    JF_REQUIRE(in_range(op.output) && !defined[op.output], "[verify] value ", op.output, " is defined twice");
    const Value& value = fusion.values[op.output];
    check_name(value.name, names);
    Value inferred = infer(fusion, op.kind, op.inputs, op.attribute, value);
    inferred.name = value.name;
    JF_REQUIRE(inferred == value, "[verify] ", value.name, " = ", info(op.kind).name, "(...) has type ",
               print_type(fusion, inferred), ", but the fusion says ", print_type(fusion, value));
    defined[op.output] = true;
  }
  std::vector<int> placed(count, 0);
  for (const Op& op : fusion.ops) {
    for (ValueId id : op.inputs) placed[id] += op.kind == OpKind::kConcat;
  }
  for (const Op& op : fusion.ops) {
    JF_REQUIRE(placed[op.output] < 2, "[verify] ", fusion.values[op.output].name,
               " is an operand of concat twice; place it once for each");
  }
  JF_REQUIRE(std::find(defined.begin(), defined.end(), false) == defined.end(), "[verify] a value has no definition");
  JF_REQUIRE(!fusion.outputs.empty(), "[verify] the fusion has no output");
  std::set<ValueId> outputs;
  for (ValueId id : fusion.outputs) {
    JF_REQUIRE(in_range(id) && outputs.insert(id).second, "[verify] output ", id, " is unknown or listed twice");
    JF_REQUIRE(ragged_axis(fusion.values[id]) < 0, "[verify] output ", fusion.values[id].name, " is ",
               print_type(fusion, fusion.values[id]), ", nested, which no memory holds; combine it");
  }
}

}  // namespace jf::ir
