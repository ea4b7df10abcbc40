#include "plan/reshapes.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/lists.h"
#include "ir/append.h"
#include "ir/build.h"
#include "ir/verify.h"
#include "plan/axis_cuts.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::ValueId;
using Sizes = std::vector<int64_t>;

// Without ones, but never nothing: how the parts of an axis look after all those of extent 1 are gone.
Sizes without_ones(const Sizes& parts) {
  Sizes rest;
  for (int64_t extent : parts) {
    if (extent != 1) rest.push_back(extent);
  }
  return rest.empty() ? Sizes{1} : rest;
}

void append(Sizes& all, const Sizes& more) { all.insert(all.end(), more.begin(), more.end()); }

class ReshapeRewriter {
 public:
  explicit ReshapeRewriter(const Fusion& whole)
      : whole_(whole),
        cuts_(cut_axes(whole)),
        builder_(whole.name),
        renamed_(whole.values.size(), -1),
        is_computed_(whole.values.size(), false) {}

  Fusion run() {
    for (ValueId id : whole_.inputs) {
      renamed_[id] = builder_.input(whole_.values[id].name, whole_.values[id].dtype, shape(id));
    }
    for (const Op& op : whole_.ops) {
      renamed_[op.output] = rewrite(op);
      is_computed_[op.output] = ir::info(op.kind).op_class == ir::OpClass::kPointwise;
    }
    std::vector<ValueId> outputs;  // each once
    std::vector<size_t> number;
    std::map<ValueId, ValueId> reshaped;  // what moved, by result
    for (const Op& op : whole_.ops) {
      if (cuts_.moved.contains(op.output)) reshaped[op.output] = op.inputs[0];
    }
    for (ValueId id : whole_.outputs) {
      while (reshaped.contains(id)) id = reshaped[id];  // the same memory
      const auto found = std::find(outputs.begin(), outputs.end(), renamed_[id]);
      number.push_back(static_cast<size_t>(found - outputs.begin()));
      if (found != outputs.end()) continue;
      outputs.push_back(renamed_[id]);
      builder_.output(renamed_[id]);
      builder_.set_name(renamed_[id], whole_.values[id].name);
    }
    for (const Op& op : whole_.ops) builder_.set_name(renamed_[op.output], whole_.values[op.output].name);
    Fusion result = builder_.finish();
    return with_copies(std::move(result), number);
  }

 private:
  const std::vector<Sizes>& parts(ValueId id) const { return cuts_.parts[id]; }
  Sizes shape(ValueId id) const {
    Sizes all;
    for (const Sizes& axis : parts(id)) append(all, axis);
    return all;
  }
  // The first part of an axis.
  int64_t first(ValueId id, int64_t axis) const {
    int64_t at = 0;
    for (int64_t a = 0; a < axis; ++a) at += static_cast<int64_t>(parts(id)[a].size());
    return at;
  }
  Sizes all_parts(ValueId id, const Sizes& axes) const {
    Sizes dims;
    for (int64_t axis : axes) {
      for (size_t i = 0; i < parts(id)[axis].size(); ++i) dims.push_back(first(id, axis) + static_cast<int64_t>(i));
    }
    return dims;
  }

  ValueId rewrite(const Op& op) {
    std::vector<ValueId> x;
    for (ValueId id : op.inputs) x.push_back(renamed_[id]);
    const ir::Value& value = whole_.values[op.output];
    const ir::Dims* dims = std::get_if<ir::Dims>(&op.attribute);
    switch (op.kind) {
      case OpKind::kConstant: return builder_.constant(value.dtype, std::get<ir::Constant>(op.attribute));
      case OpKind::kIota: return iota(op);
      case OpKind::kBroadcast: return broadcast(op, x[0]);
      case OpKind::kTranspose: return builder_.transpose(x[0], all_parts(op.inputs[0], dims->dims));
      case OpKind::kSqueeze: return builder_.squeeze(x[0], all_parts(op.inputs[0], dims->dims));
      case OpKind::kSlice: return slice(op, x[0], std::get<ir::Slice>(op.attribute), parts(op.output));
      case OpKind::kPad: return pad(op, x[0]);
      case OpKind::kTake: return take(op, std::move(x));
      case OpKind::kSearch: return search(op, x);
      case OpKind::kReshape: return builder_.reshape(x[0], shape(op.output));
      case OpKind::kPlace:
      case OpKind::kCopy: return x[0];
      case OpKind::kConcat: return concat(op);
      case OpKind::kConvert: return builder_.convert(x[0], value.dtype, op.label);
      case OpKind::kBitcast: return builder_.bitcast(x[0], value.dtype, op.label);
      case OpKind::kGroupedMatmul:
        return builder_.grouped_matmul(x[0], x[1], x[2], std::span(x).subspan(3), std::get<ir::Grouped>(op.attribute),
                                       value.dtype, op.label);
      default: break;
    }
    if (const auto* reduce = std::get_if<ir::Reduce>(&op.attribute)) {
      return builder_.reduce(op.kind, x[0], all_parts(op.inputs[0], reduce->dims), reduce->parts, op.label,
                             reduce->in_turn);
    }
    if (const auto* scan = std::get_if<ir::Scan>(&op.attribute)) {
      return builder_.scan(op.kind, x[0], first(op.inputs[0], scan->axis), scan->reverse, op.label,
                           x.size() > 1 ? x[1] : -1);
    }
    return builder_.pointwise(op.kind, x, op.label);
  }

  ValueId iota(const Op& op) {
    const ir::Value& value = whole_.values[op.output];
    const int64_t axis = std::get<ir::Dims>(op.attribute).dims[0], at = first(op.output, axis);
    const Sizes to = shape(op.output), &along = parts(op.output)[axis];
    if (along.size() == 1) return builder_.iota(value.dtype, to, at);
    const DType dtype = value.axes[axis].extent > INT32_MAX ? DType::kS64 : DType::kS32;
    ValueId sum = -1;
    int64_t step = 1;
    for (size_t i = along.size(); i-- > 0; step *= along[i]) {
      ValueId count = builder_.iota(dtype, to, at + static_cast<int64_t>(i));
      if (step > 1) {
        const ValueId steps = builder_.broadcast(builder_.constant(dtype, {step}), to, {});
        count = builder_.pointwise(OpKind::kMul, std::array{count, steps});
      }
      sum = sum < 0 ? count : builder_.pointwise(OpKind::kAdd, std::array{count, sum});
    }
    return builder_.convert(sum, value.dtype);
  }

  ValueId broadcast(const Op& op, ValueId x) {
    const std::vector<int64_t>& dims = std::get<ir::Dims>(op.attribute).dims;
    Sizes to;
    for (size_t a = 0; a < dims.size(); ++a) {
      for (size_t i = 0; i < parts(op.inputs[0])[a].size(); ++i) {
        to.push_back(first(op.output, dims[a]) + static_cast<int64_t>(i));
      }
    }
    return builder_.broadcast(x, shape(op.output), to);
  }

  // `to`: the parts of each axis of the result.
  ValueId slice(const Op& op, ValueId x, const ir::Slice& where, const std::vector<Sizes>& to) {
    ir::Slice inner;
    Sizes counts, result;
    for (size_t a = 0; a < to.size(); ++a) {
      int64_t count = 1;
      for (int64_t extent : to[a]) count *= extent;
      const Sizes& from = parts(op.inputs[0])[a];
      const auto ranges = part_ranges(from, where.starts[a], count, where.strides[a]);
      JF_CHECK(ranges.has_value(), "axis ", a, " of a slice is cut unevenly");
      for (const PartRange& range : *ranges) {
        inner.starts.push_back(range.start);
        inner.strides.push_back(range.stride);
        counts.push_back(range.count);
      }
      append(result, to[a]);
    }
    if (is_computed_[op.inputs[0]]) builder_.store(x);  // it would have been sliced before
    return builder_.reshape(builder_.slice(x, inner, counts), result);
  }

  ValueId pad(const Op& op, ValueId x) {
    const ir::Pad& where = std::get<ir::Pad>(op.attribute);
    std::vector<Sizes> middle;
    Sizes counts, low, high;
    for (size_t a = 0; a < where.low.size(); ++a) {
      const Sizes& to = parts(op.output)[a];
      const auto ranges = part_ranges(to, where.low[a], where.counts[a]);
      JF_CHECK(ranges.has_value(), "axis ", a, " of a pad is cut unevenly");
      Sizes own;
      for (size_t i = 0; i < to.size(); ++i) {
        own.push_back((*ranges)[i].count);
        low.push_back((*ranges)[i].start);
        high.push_back(to[i] - low.back() - own.back());
      }
      append(counts, own);
      middle.push_back(without_ones(own));
    }
    const DType dtype = whole_.values[op.output].dtype;
    const ValueId inside = builder_.reshape(slice(op, x, where.from, middle), counts);
    return builder_.pad(inside, low, high, builder_.constant(dtype, ir::zero_of(dtype)));
  }

  ValueId take(const Op& op, std::vector<ValueId> x) {
    const ir::Take& where = std::get<ir::Take>(op.attribute);
    ir::Take inner{{}, where.limits, {}, {}, {}};
    for (int64_t axis : where.axes) inner.axes.push_back(first(op.inputs[0], axis));
    for (size_t a = 0; a < where.dims.size(); ++a) {
      const size_t count = parts(op.inputs[0])[a].size();
      for (size_t i = 0; i < count; ++i) {
        const int64_t dim = where.dims[a];
        inner.dims.push_back(dim < 0 ? -1 : first(op.output, dim) + static_cast<int64_t>(i));
        inner.starts.push_back(where.starts[a]);
        inner.strides.push_back(where.strides[a]);
      }
    }
    return builder_.take(std::move(x), std::move(inner), shape(op.output));
  }

  ValueId search(const Op& op, const std::vector<ValueId>& x) {
    const ir::Search& how = std::get<ir::Search>(op.attribute);
    return builder_.search(x[0], x[1], {how.left, all_parts(op.output, how.dims)}, op.label);
  }

  ValueId concat(const Op& op) {
    const int64_t axis = std::get<ir::Dims>(op.attribute).dims[0];
    const Sizes& along = parts(op.output)[axis];
    std::vector<ValueId> values;
    for (ValueId placed : op.inputs) {
      Sizes to;
      for (size_t a = 0; a < parts(placed).size(); ++a) {
        Sizes own = parts(op.output)[a];
        if (static_cast<int64_t>(a) == axis) {
          int64_t inner = 1;
          for (size_t i = 1; i < along.size(); ++i) inner *= along[i];
          own[0] = whole_.values[placed].axes[a].extent / inner;
        }
        append(to, own);
      }
      values.push_back(builder_.reshape(renamed_[placed], to));
    }
    return builder_.concat(values, first(op.output, axis));
  }

  // An output that another one repeats has memory of its own. `number`: by output, which of those of `fusion`.
  static Fusion with_copies(Fusion fusion, const std::vector<size_t>& number) {
    std::vector<ValueId> outputs;
    for (size_t n : number) {
      ValueId id = fusion.outputs[n];
      if (contains(outputs, id)) {
        ir::Value copy;
        copy.name = cat(fusion.values[id].name, "_again");
        while (std::any_of(fusion.values.begin(), fusion.values.end(),
                           [&](const ir::Value& other) { return other.name == copy.name; })) {
          copy.name += "_";
        }
        id = ir::append(fusion, OpKind::kCopy, {id}, {}, copy);
      }
      outputs.push_back(id);
    }
    fusion.outputs = std::move(outputs);
    ir::verify(fusion);
    return fusion;
  }

  const Fusion& whole_;
  const AxisCuts cuts_;
  ir::Builder builder_;
  std::vector<ValueId> renamed_;
  std::vector<bool> is_computed_;  // by value of the whole: by a pointwise op
};

}  // namespace

Fusion without_reshapes(const Fusion& fusion) {
  bool any = false;
  for (const Op& op : fusion.ops) {
    any = any || op.kind == OpKind::kReshape;
    // Scans in parts come later, but in text that a person wrote.
    const auto* scan = std::get_if<ir::Scan>(&op.attribute);
    if (op.kind == OpKind::kSpread || (scan != nullptr && scan->parts > 0)) return fusion;
  }
  return any ? ReshapeRewriter(fusion).run() : fusion;
}

}  // namespace jf::plan
