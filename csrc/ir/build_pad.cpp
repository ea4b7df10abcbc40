// Padding in the builder: what a value is computed from is padded instead, and what comes of that outside is replaced.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/lists.h"
#include "ir/build.h"

namespace jf::ir {
namespace {

// An axis that a thread may have as a whole.
constexpr int64_t kFewElements = 16;

// No element is moved or left out, and none is added.
bool is_identity(const Pad& where, const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    const bool whole = where.from.starts[i] == 0 && where.counts[i] == from[i] && from[i] == to[i];
    if (!whole || (where.from.strides[i] != 1 && from[i] > 1)) return false;
  }
  return true;
}

Pad empty_pad(size_t rank) {
  return {{std::vector<int64_t>(rank, 0), std::vector<int64_t>(rank, 1)},
          std::vector<int64_t>(rank, 0),
          std::vector<int64_t>(rank, 1)};
}
void copy_axis(const Pad& from, size_t a, Pad& to, size_t b) {
  to.from.starts[b] = from.from.starts[a];
  to.from.strides[b] = from.from.strides[a];
  to.low[b] = from.low[a];
  to.counts[b] = from.counts[a];
}

// What `where` takes of `size` elements that begin at element `begin` of the axis, as elements of theirs.
void clip(Pad& where, size_t axis, int64_t begin, int64_t size) {
  int64_t &start = where.from.starts[axis], &low = where.low[axis], &count = where.counts[axis];
  const int64_t stride = where.from.strides[axis], step = std::abs(stride);
  // How many come before so many elements further on.
  auto before = [&](int64_t distance) {
    return std::clamp<int64_t>((std::max<int64_t>(distance, 0) + step - 1) / step, 0, count);
  };
  const int64_t ahead = stride > 0 ? begin - start : start - (begin + size - 1);
  const int64_t first = before(ahead), end = before(ahead + size);
  start += first * stride - begin;
  low += first;
  count = std::max<int64_t>(end - first, 0);
  if (count == 0) start = 0;
}

// Has the operand in memory in any case. A reshape may be gone before it reads anything.
// By value.
std::vector<bool> concats_of(const Fusion& fusion) {
  std::vector<bool> result(fusion.values.size(), false);
  for (const Op& op : fusion.ops) result[op.output] = op.kind == OpKind::kConcat;
  return result;
}

bool reads_whole(const Op& op, size_t operand) {
  return op.kind == OpKind::kGroupedMatmul || op.kind == OpKind::kReshape ||
         ((op.kind == OpKind::kTake || op.kind == OpKind::kSearch) && operand == 0);
}

}  // namespace

ValueId Builder::full(DType dtype, const std::vector<int64_t>& shape, Constant number) {
  return broadcast(constant(dtype, number), shape, {});
}

ValueId Builder::is_below(const std::vector<int64_t>& shape, int64_t axis, int64_t bound) {
  const DType dtype = shape[axis] > INT32_MAX ? DType::kS64 : DType::kS32;
  return pointwise(OpKind::kLt, std::array{iota(dtype, shape, axis), full(dtype, shape, {bound})});
}

ValueId Builder::counting(const std::vector<int64_t>& shape, int64_t axis, int64_t first, int64_t stride) {
  // Strides may be negative, and no axis has so many elements that this overflows.
  const int64_t last = first + (std::max<int64_t>(shape[axis], 1) - 1) * stride;
  const bool is_long = std::max({std::abs(first), std::abs(last), std::abs(last - first)}) > INT32_MAX;
  const DType dtype = is_long ? DType::kS64 : DType::kS32;
  ValueId count = iota(dtype, shape, axis);
  if (stride != 1) count = pointwise(OpKind::kMul, std::array{count, full(dtype, shape, {stride})});
  if (first != 0) count = pointwise(OpKind::kAdd, std::array{count, full(dtype, shape, {first})});
  return count;
}

ValueId Builder::pad(ValueId x, std::span<const int64_t> low, std::span<const int64_t> high, ValueId padding) {
  const std::vector<int64_t> old = shape(value(x, "pad"));
  const DType dtype = value(x, "pad").dtype;
  const Value& by = value(padding, "pad");
  JF_REQUIRE(low.size() == old.size() && high.size() == old.size(),
             "[pad] expected a low and a high number for each of ", old.size(), " axes, got ", low.size(), " and ",
             high.size());
  JF_REQUIRE(by.axes.empty() && by.dtype == dtype, "[pad] expected a padding of ", name(dtype), "[], got ",
             name(by.dtype), " of rank ", by.axes.size(), "; convert it");
  Pad where{{std::vector<int64_t>(old.size(), 0), std::vector<int64_t>(old.size(), 1)}, {}, {}};
  std::vector<int64_t> counts;
  bool pads = false, nothing = false;
  for (size_t i = 0; i < old.size(); ++i) {
    const int64_t extent = old[i] + low[i] + high[i];
    JF_REQUIRE(extent >= 0, "[pad] axis ", i, " of extent ", old[i], " cannot lose ", -low[i], " and ", -high[i],
               " elements");
    // Where one end is cut by more than there is, the rest is cut off the other end's padding.
    const int64_t first = std::clamp<int64_t>(-low[i], 0, old[i]),
                  last = old[i] - std::clamp<int64_t>(-high[i], 0, old[i]);
    where.from.starts[i] = last > first ? first : 0;
    where.counts.push_back(std::max<int64_t>(last - first, 0));
    where.low.push_back(std::min(std::max<int64_t>(low[i], 0), extent));
    where.counts.back() = std::min(where.counts.back(), extent - where.low.back());
    counts.push_back(extent);
    pads = pads || where.counts.back() != extent;
    nothing = nothing || where.counts.back() == 0;
  }
  if (ragged_axis(fusion_.values[x]) >= 0) return pad_nested(x, where, counts, padding);
  const ValueId outside = broadcast(padding, counts, {});
  if (nothing) return outside;
  if (!pads) return slice(x, where.from, counts);
  const ValueId inside = spread(x, where, counts);
  const Op *op = definition(inside), *number = definition(padding);
  const bool zeros = number != nullptr && number->attribute == Attribute{zero_of(dtype)};
  const ValueId result = zeros && op != nullptr && op->kind == OpKind::kPad ? inside : chosen(inside, outside, where);
  if (zeros) note_part(result, x, where);
  return result;
}

// The value inside, another one outside.
ValueId Builder::chosen(ValueId inside, ValueId outside, const Pad& where) {
  const std::vector<int64_t> counts = shape(fusion_.values[inside]);
  ValueId which = -1;
  auto also = [&](ValueId more) { which = which < 0 ? more : pointwise(OpKind::kAnd, std::array{which, more}); };
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto axis = static_cast<int64_t>(i);
    const int64_t end = where.low[i] + where.counts[i];
    if (where.low[i] > 0) also(pointwise(OpKind::kNot, std::array{is_below(counts, axis, where.low[i])}));
    if (end < counts[i]) also(is_below(counts, axis, end));
  }
  return pointwise(OpKind::kSelect, std::array{which, inside, outside});
}

void Builder::note_part(ValueId padded, ValueId x, const Pad& where) {
  const std::vector<int64_t> whole = shape(fusion_.values[padded]);
  int64_t axis = -1;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (where.counts[i] == whole[i]) continue;
    if (axis >= 0) return;
    axis = static_cast<int64_t>(i);
  }
  padded_[padded] = {axis, {{where.low[axis], slice(x, where.from, where.counts)}}};
}

ValueId Builder::sum_of_parts(std::span<const ValueId> inputs) {
  if (inputs.size() != 2) return -1;
  const auto a = padded_.find(inputs[0]), b = padded_.find(inputs[1]);
  if (a == padded_.end() || b == padded_.end() || a->second.axis != b->second.axis) return -1;
  if (shape(fusion_.values[inputs[0]]) != shape(fusion_.values[inputs[1]])) return -1;
  const int64_t axis = a->second.axis;
  Parts all = a->second;
  for (const auto& [first, part] : b->second.from) {
    if (!all.from.emplace(first, part).second) return -1;
  }
  const int64_t size = fusion_.values[all.from.begin()->second].axes[axis].extent;
  const int64_t extent = fusion_.values[inputs[0]].axes[axis].extent;
  int64_t filled = 0;
  bool apart = true, even = true;
  for (const auto& [first, part] : all.from) {
    const int64_t count = fusion_.values[part].axes[axis].extent;
    even = even && first == filled && count == size;
    apart = apart && first >= filled;
    filled = first + count;
  }
  if (!apart) return -1;
  // Parts of one size are one kernel that stores each in its place.
  if (!even || filled != extent) {
    const ValueId sum = add_op(OpKind::kAdd, {inputs.begin(), inputs.end()}, {}, DType::kPred, {}, "");
    padded_[sum] = std::move(all);
    return sum;
  }
  std::vector<ValueId> parts;
  for (const auto& [first, part] : all.from) {
    const DType dtype = fusion_.values[part].dtype;
    const std::vector<int64_t> own = shape(fusion_.values[part]);
    // Minus zero and zero add up to zero.
    parts.push_back(is_float(dtype) ? pointwise(OpKind::kAdd, std::array{part, full(dtype, own, zero_of(dtype))})
                                    : part);
  }
  return concat(parts, axis);
}

void Builder::join_read_concats() {
  std::vector<bool> live(fusion_.values.size(), false);
  for (ValueId id : fusion_.outputs) live[id] = true;
  const std::vector<bool> is_concat = concats_of(fusion_);
  bool any = false;
  for (auto op = fusion_.ops.rbegin(); op != fusion_.ops.rend(); ++op) {
    if (!live[op->output]) continue;
    for (size_t i = 0; i < op->inputs.size(); ++i) {
      live[op->inputs[i]] = true;
      any = any || (is_concat[op->inputs[i]] && !reads_whole(*op, i));
    }
  }
  if (!any) return;
  const std::vector<bool> none(live.size(), false);
  const std::map<ValueId, std::string> names = names_;
  rebuild(take_fusion(), names, live, none, none);
}

std::map<ValueId, std::string> Builder::names_of(const Fusion& fusion) {
  std::map<ValueId, std::string> names;
  for (const Op& op : fusion.ops) names.emplace(op.output, fusion.values[op.output].name);
  return names;
}

Fusion Builder::with_chosen_pieces(const Fusion& old) {
  // Parts, each of which is computed for all elements, or where they are single elements for all of a thread, if no
  // fold makes them; bytes in a row that are stored as well as more are.
  constexpr size_t kMostParts = 4;
  constexpr int64_t kLeastBytes = 32;
  std::vector<bool> chosen(old.values.size(), false), folded(old.values.size(), false);
  for (const Op& op : old.ops) {
    folded[op.output] =
        info(op.kind).op_class == OpClass::kReduce || info(op.kind).op_class == OpClass::kScan ||
        std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return static_cast<bool>(folded[id]); });
    if (op.kind != OpKind::kConcat || std::ssize(op.inputs) > kFewElements) continue;
    const int64_t axis = std::get<Dims>(op.attribute).dims[0];
    int64_t least = kLeastBytes, elements = 1;
    for (size_t a = axis; a < old.values[op.output].axes.size(); ++a) elements *= old.values[op.output].axes[a].extent;
    if (op.inputs.size() > kMostParts && (elements != std::ssize(op.inputs) || folded[op.output])) continue;
    for (ValueId part : op.inputs) {
      int64_t bytes = size_of(old.values[part].dtype);
      for (size_t a = axis; a < old.values[part].axes.size(); ++a) bytes *= old.values[part].axes[a].extent;
      least = std::min(least, bytes);
    }
    chosen[op.output] = 0 < least && least < kLeastBytes;
  }
  if (!contains(chosen, true)) return old;
  Builder builder(old.name);
  const std::vector<bool> all(old.values.size(), true), none(old.values.size(), false);
  builder.rebuild(old, names_of(old), all, chosen, none);
  return builder.finish();
}

Fusion Builder::with_folds_written_out(const Fusion& old, const std::vector<bool>& written_out) {
  if (!contains(written_out, true)) return old;
  Builder builder(old.name);
  const std::vector<bool> all(old.values.size(), true), none(old.values.size(), false);
  builder.rebuild(old, names_of(old), all, none, written_out);
  return builder.finish();
}

Fusion Builder::with_bytes_of_pairs(const Fusion& old) {
  Builder builder(old.name);
  builder.bytes_of_pairs_ = true;
  const std::vector<bool> all(old.values.size(), true), none(old.values.size(), false);
  builder.rebuild(old, names_of(old), all, none, none);
  return builder.finish();
}

ValueId Builder::bytes_of_pairs(ValueId x) {
  std::vector<int64_t> half = shape(fusion_.values[x]);
  half.back() /= 2;
  Slice where{std::vector<int64_t>(half.size(), 0), std::vector<int64_t>(half.size(), 1)};
  where.strides.back() = 2;
  const ValueId low = convert(slice(x, where, half), DType::kU8);
  where.starts.back() = 1;
  const ValueId high = convert(slice(x, where, half), DType::kU8);
  const auto number = [&](int64_t n) { return full(DType::kU8, half, Constant{n}); };
  const ValueId first = pointwise(OpKind::kAnd, std::array{low, number(15)});
  return pointwise(OpKind::kOr, std::array{first, pointwise(OpKind::kShiftLeft, std::array{high, number(4)})});
}

ValueId Builder::fold_written_out(const Op& op, ValueId x, DType dtype) {
  const std::vector<int64_t>& dims = std::get<Reduce>(op.attribute).dims;
  const std::vector<int64_t> whole = shape(fusion_.values[x]);
  std::vector<int64_t> one = whole;
  int64_t elements = 1;
  for (int64_t dim : dims) elements *= std::exchange(one[dim], 1);
  ValueId result = -1;
  for (int64_t i = 0; i < elements; ++i) {
    Slice where{std::vector<int64_t>(whole.size(), 0), std::vector<int64_t>(whole.size(), 1)};
    int64_t rest = i;
    for (int64_t dim : dims) {
      where.starts[dim] = rest % whole[dim];
      rest /= whole[dim];
    }
    const ValueId next = convert(squeeze(slice(x, where, one), dims), compute_dtype(dtype));
    result = result < 0 ? next : pointwise(fold_of(op.kind), std::array{result, next}, op.label);
  }
  return convert(result, dtype);
}

void Builder::rebuild(const Fusion& old, const std::map<ValueId, std::string>& names, const std::vector<bool>& live,
                      const std::vector<bool>& chosen, const std::vector<bool>& written_out) {
  fusion_.name = old.name;
  std::vector<ValueId> renamed(old.values.size(), -1), whole(old.values.size(), -1);
  for (ValueId id : old.inputs) {
    renamed[id] = add_value(old.values[id].dtype, old.values[id].axes);
    fusion_.values[renamed[id]].name = old.values[id].name;
    fusion_.inputs.push_back(renamed[id]);
  }
  const std::vector<bool> is_concat = concats_of(old);
  auto read = [&](ValueId id) {
    if (!is_concat[id]) return renamed[id];
    if (whole[id] < 0) {
      const Op op = *definition(renamed[id]);
      const std::vector<int64_t> all = shape(old.values[id]);
      Pad everything = empty_pad(all.size());
      everything.counts = all;
      whole[id] = spread_concat(op, everything, all);
    }
    return whole[id];
  };
  for (const Op& op : old.ops) {
    if (!live[op.output]) continue;
    const Value& type = old.values[op.output];
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const ValueId id = op.inputs[i];
      inputs.push_back(reads_whole(op, i) && !chosen[id] ? renamed[id] : read(id));
    }
    if (op.kind == OpKind::kSlice || op.kind == OpKind::kPad) stored_.insert(inputs[0]);
    if (op.kind == OpKind::kPlace) {
      renamed[op.output] = inputs[0];  // concat places it anew
    } else if (op.kind == OpKind::kConcat) {
      renamed[op.output] = concat(inputs, std::get<Dims>(op.attribute).dims[0]);
    } else if (written_out[op.output]) {
      renamed[op.output] = fold_written_out(op, inputs[0], type.dtype);
    } else if (bytes_of_pairs_ && type.dtype == DType::kU4) {
      renamed[op.output] = bytes_of_pairs(inputs[0]);
    } else {
      renamed[op.output] = add_op(op.kind, std::move(inputs), op.attribute, type.dtype, type.axes, op.label);
    }
  }
  auto keep_name = [&](ValueId id, ValueId now) {
    const auto named = names.find(id);
    if (now >= 0 && named != names.end()) set_name(now, named->second);
  };
  for (ValueId id : old.outputs) {
    ValueId made = chosen[id] ? read(id) : renamed[id];
    if (contains(fusion_.outputs, made)) {  // as another one now, and yet a result
      const ValueId copied = made;
      made = add_value(old.values[id].dtype, old.values[id].axes);
      push({OpKind::kCopy, {copied}, made, {}, ""});
    }
    fusion_.outputs.push_back(made);
    keep_name(id, made);
  }
  for (const Op& op : old.ops) keep_name(op.output, renamed[op.output]);
}

ValueId Builder::spread(ValueId x, const Pad& asked, const std::vector<int64_t>& to) {
  const std::vector<int64_t> from = shape(fusion_.values[x]);
  Pad where = asked;
  for (size_t i = 0; i < to.size(); ++i) {
    if (where.counts[i] == 1) where.from.strides[i] = 1;  // the next element would not lie inside
  }
  if (is_identity(where, from, to)) return x;
  const DType dtype = fusion_.values[x].dtype;
  if (contains(where.counts, 0)) return full(dtype, to, zero_of(dtype));
  if (where.counts == to) return sliced(x, where.from, to);
  std::vector<int64_t> key = to;
  for (const auto* part : {&where.from.starts, &where.from.strides, &where.low, &where.counts}) {
    key.insert(key.end(), part->begin(), part->end());
  }
  if (const auto found = spreads_.find({x, key}); found != spreads_.end()) return found->second;
  ValueId result = spread_anew(x, where, to);
  if (result < 0) result = add_op(OpKind::kPad, {x}, where, dtype, axes_of(to), "");
  spreads_.emplace(std::make_pair(x, std::move(key)), result);
  note_origin(result, x, where.from);
  return result;
}

// -1 where the value itself has to be read.
ValueId Builder::spread_anew(ValueId x, const Pad& where, const std::vector<int64_t>& to) {
  const Deeper deeper(*this);
  const Op* defining = inner_definition(x);
  if (defining == nullptr) return -1;
  const Op op = *defining;  // which adding ops may move
  const DType dtype = fusion_.values[x].dtype;
  if (info(op.kind).op_class == OpClass::kPointwise) {
    std::vector<ValueId> inputs;
    for (ValueId id : op.inputs) inputs.push_back(spread(id, where, to));
    return add_op(op.kind, std::move(inputs), op.attribute, dtype, {}, op.label);
  }
  if (op.kind == OpKind::kConcat) return spread_concat(op, where, to);
  if (op.kind == OpKind::kPad) return spread_pad(op, where, to);
  if (op.kind == OpKind::kSlice) {
    Pad inner = where;
    const Slice& slice = std::get<Slice>(op.attribute);
    for (size_t i = 0; i < to.size(); ++i) {
      inner.from.starts[i] = slice.starts[i] + where.from.starts[i] * slice.strides[i];
      inner.from.strides[i] = slice.strides[i] * where.from.strides[i];
    }
    return spread(op.inputs[0], inner, to);
  }
  if (op.kind == OpKind::kTake) {
    for (int64_t dim : std::get<Take>(op.attribute).dims) {
      if (dim >= 0 && where.counts[dim] != to[dim]) return -1;
    }
    std::vector<ValueId> inputs = op.inputs;
    for (size_t i = 1; i < inputs.size(); ++i) inputs[i] = spread(inputs[i], where, to);
    return take(std::move(inputs), part_of(std::get<Take>(op.attribute), where.from), to);
  }
  if (op.kind == OpKind::kSearch) return spread_search(op, where, to);
  if (op.kind == OpKind::kPartition || op.kind == OpKind::kStretch) return spread_nested(op, where, to);
  const bool folds = info(op.kind).op_class == OpClass::kReduce || info(op.kind).op_class == OpClass::kScan;
  if (folds && ragged_axis(fusion_.values[x]) >= 0) return spread_fold(op, where, to);
  if (op.kind == OpKind::kIota) {
    const int64_t dim = std::get<Dims>(op.attribute).dims[0];
    const int64_t stride = where.from.strides[dim], first = where.from.starts[dim] - where.low[dim] * stride;
    return convert(counting(to, dim, first, stride), dtype);
  }
  if (op.kind != OpKind::kBroadcast && op.kind != OpKind::kTranspose && op.kind != OpKind::kSqueeze) return -1;

  const std::vector<int64_t> from = shape(fusion_.values[op.inputs[0]]), own = shape(fusion_.values[x]);
  const std::vector<int64_t>& dims = std::get<Dims>(op.attribute).dims;
  Pad inner = empty_pad(from.size());
  std::vector<int64_t> inner_shape(from.size(), 1);
  size_t next = 0;
  for (size_t i = 0; i < (op.kind == OpKind::kTranspose ? 0 : from.size()); ++i) {
    const bool gone = op.kind == OpKind::kSqueeze && std::count(dims.begin(), dims.end(), static_cast<int64_t>(i)) > 0;
    if (gone) continue;
    const size_t axis = op.kind == OpKind::kSqueeze ? next++ : static_cast<size_t>(dims[i]);
    if (from[i] != own[axis]) continue;  // it repeats
    copy_axis(where, axis, inner, i);
    inner_shape[i] = to[axis];
  }
  if (op.kind == OpKind::kSqueeze) return squeeze(spread(op.inputs[0], inner, inner_shape), dims);
  if (op.kind == OpKind::kBroadcast) return broadcast(spread(op.inputs[0], inner, inner_shape), to, dims);
  for (size_t i = 0; i < dims.size(); ++i) {
    copy_axis(where, i, inner, dims[i]);
    inner_shape[dims[i]] = to[i];
  }
  return transpose(spread(op.inputs[0], inner, inner_shape), dims);
}

ValueId Builder::spread_everywhere(ValueId x, const Pad& asked, int64_t axis, const std::vector<int64_t>& to) {
  Pad where = asked;
  where.low[axis] = 0;
  std::vector<int64_t> one = to, dims(to.size());
  one[axis] = 1;
  std::iota(dims.begin(), dims.end(), 0);
  return broadcast(spread(x, where, one), to, dims);
}

// The operands, each chosen up to where the next one begins. One of a single element along a short axis is the same
// anywhere, so that what is computed from neighbours reads each of them once.
ValueId Builder::spread_concat(const Op& op, const Pad& where, const std::vector<int64_t>& to) {
  const int64_t axis = std::get<Dims>(op.attribute).dims[0];
  const bool backwards = where.from.strides[axis] < 0;
  ValueId result = -1;
  for (size_t n = op.inputs.size(); n-- > 0;) {
    const Op& placed = *definition(op.inputs[backwards ? op.inputs.size() - 1 - n : n]);
    const ValueId operand = placed.inputs[0];
    Pad part = where;
    clip(part, axis, std::get<Place>(placed.attribute).starts[axis], fusion_.values[operand].axes[axis].extent);
    if (part.counts[axis] == 0) continue;
    const int64_t end = part.low[axis] + part.counts[axis];
    const bool everywhere = part.counts[axis] == 1 && 1 < to[axis] && to[axis] <= kFewElements;
    const ValueId inside = everywhere ? spread_everywhere(operand, part, axis, to) : spread(operand, part, to);
    result = result < 0 ? inside : pointwise(OpKind::kSelect, std::array{is_below(to, axis, end), inside, result});
  }
  if (result < 0) result = full(fusion_.values[op.output].dtype, to, zero_of(fusion_.values[op.output].dtype));
  return result;
}

ValueId Builder::spread_pad(const Op& op, const Pad& where, const std::vector<int64_t>& to) {
  const Pad& own = std::get<Pad>(op.attribute);
  Pad inner = where;
  for (size_t i = 0; i < to.size(); ++i) {
    clip(inner, i, own.low[i], own.counts[i]);
    inner.from.starts[i] = own.from.starts[i] + inner.from.starts[i] * own.from.strides[i];
    inner.from.strides[i] *= own.from.strides[i];
  }
  return spread(op.inputs[0], inner, to);
}

// -1 where the value itself has to be read.
ValueId Builder::slice_of_view(ValueId x, const Slice& where, const std::vector<int64_t>& counts) {
  const Op op = *definition(x);
  const Pad all{where, std::vector<int64_t>(counts.size(), 0), counts};
  if (contains(counts, 0)) return -1;
  if (op.kind == OpKind::kConcat) return spread_concat(op, all, counts);
  if (op.kind == OpKind::kPad) return spread_pad(op, all, counts);
  if (op.kind == OpKind::kTake) return slice_of_take(op, where, counts);
  if (op.kind == OpKind::kSearch) return slice_of_search(op, where, counts);
  if (op.kind != OpKind::kSqueeze) return -1;
  const std::vector<int64_t>& dims = std::get<Dims>(op.attribute).dims;
  Slice inner;
  std::vector<int64_t> inner_counts;
  size_t next = 0;
  for (size_t i = 0; i < fusion_.values[op.inputs[0]].axes.size(); ++i) {
    const bool gone = contains(dims, static_cast<int64_t>(i));
    inner.starts.push_back(gone ? 0 : where.starts[next]);
    inner.strides.push_back(gone ? 1 : where.strides[next]);
    inner_counts.push_back(gone ? 1 : counts[next]);
    next += !gone;
  }
  return squeeze(sliced(op.inputs[0], inner, inner_counts), dims);
}

}  // namespace jf::ir
