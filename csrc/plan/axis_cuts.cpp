#include "plan/axis_cuts.h"

#include <algorithm>

#include "base/error.h"
#include "base/union_find.h"
#include "schedule/axes.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::ValueId;

// Of a value, so that loops stay few.
constexpr size_t kMaxParts = 16;

// An axis is cut at numbers of elements from its end: each divides the next larger one, and the extent.
using Cuts = std::vector<int64_t>;  // ascending, without 1 and the extent

class Solver {
 public:
  explicit Solver(const Fusion& fusion) : fusion_(fusion) {
    int count = 0;
    for (const ir::Value& value : fusion.values) {
      first_.push_back(count);
      count += static_cast<int>(value.axes.size());
      for (const ir::Axis& axis : value.axes) extents_.push_back(axis.extent);
    }
    for (const Op& op : fusion.ops) count += op.kind == OpKind::kPad ? static_cast<int>(rank(op.output)) : 0;
    same_ = UnionFind(count);
    extents_.resize(count, 1);
    fixed_.resize(count, false);
    for (const Op& op : fusion.ops) add(op);
    cuts_.resize(count);
    for (int id = 0; id < count; ++id) fixed_[same_.find(id)] = fixed_[same_.find(id)] || fixed_[id];
    for (const Op& op : fusion.ops) {
      if (op.kind == OpKind::kReshape && !take(op)) moved_.insert(op.output);
    }
  }

  AxisCuts result() && {
    AxisCuts cuts{{}, std::move(moved_)};
    for (size_t id = 0; id < fusion_.values.size(); ++id) {
      auto& parts = cuts.parts.emplace_back();
      for (size_t a = 0; a < fusion_.values[id].axes.size(); ++a) parts.push_back(parts_of(axis(id, a)));
    }
    return cuts;
  }

 private:
  // `part` is elements start, start + stride, ... of `whole`.
  struct Box {
    int whole, part;
    int64_t start, stride;
  };
  // Axes side by side, in their order.
  struct Row {
    int whole;
    std::vector<int> parts;
  };
  // Axes that are merged and split into others.
  struct Group {
    std::vector<int> from, to;
  };

  size_t rank(ValueId id) const { return fusion_.values[id].axes.size(); }
  int axis(size_t value, size_t a) const { return first_[value] + static_cast<int>(a); }

  void add(const Op& op) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const ValueId id = op.inputs[i];
      if (op.kind == OpKind::kGroupedMatmul) {
        for (size_t a = 0; a < rank(id); ++a) fixed_[axis(id, a)] = true;
      } else if (op.kind == OpKind::kConcat || op.kind == OpKind::kReshape) {
        continue;
      } else if (const auto* reduce = std::get_if<ir::Reduce>(&op.attribute)) {
        add_reduce(op, *reduce);
      } else {
        const std::vector<int> to = schedule::result_axes(fusion_, op, i);
        for (size_t a = 0; a < to.size(); ++a) {
          if (to[a] >= 0) same_.unite(axis(id, a), axis(op.output, to[a]));
        }
      }
    }
    if (op.kind == OpKind::kGroupedMatmul) {
      for (size_t a = 0; a < rank(op.output); ++a) fixed_[axis(op.output, a)] = true;
    } else if (const auto* scan = std::get_if<ir::Scan>(&op.attribute)) {
      fixed_[axis(op.output, scan->axis)] = true;
    } else if (op.kind == OpKind::kConcat) {
      const auto along = static_cast<size_t>(std::get<ir::Dims>(op.attribute).dims[0]);
      Row row{axis(op.output, along), {}};
      for (ValueId id : op.inputs) {
        row.parts.push_back(axis(id, along));
        for (size_t a = 0; a < rank(id); ++a) {
          if (a != along) same_.unite(axis(id, a), axis(op.output, a));
        }
      }
      rows_.push_back(std::move(row));
    } else if (const auto* slice = std::get_if<ir::Slice>(&op.attribute)) {
      for (size_t a = 0; a < rank(op.output); ++a) {
        add_box(axis(op.inputs[0], a), axis(op.output, a), slice->starts[a], slice->strides[a]);
      }
    } else if (const auto* take = std::get_if<ir::Take>(&op.attribute)) {
      const std::vector<int> to = schedule::result_axes(fusion_, op, 0);
      for (size_t a = 0; a < to.size(); ++a) {
        if (to[a] >= 0) continue;
        fixed_[axis(op.inputs[0], a)] = true;
        if (take->dims[a] >= 0) fixed_[axis(op.output, take->dims[a])] = true;
      }
    } else if (op.kind == OpKind::kSearch) {
      fixed_[axis(op.inputs[0], rank(op.inputs[0]) - 1)] = true;
    } else if (const auto* pad = std::get_if<ir::Pad>(&op.attribute)) {
      for (size_t a = 0; a < rank(op.output); ++a) {
        const int middle = next_middle_ + first_.back() + static_cast<int>(fusion_.values.back().axes.size());
        ++next_middle_;
        extents_[middle] = pad->counts[a];
        add_box(axis(op.inputs[0], a), middle, pad->from.starts[a], pad->from.strides[a]);
        boxes_.push_back({axis(op.output, a), middle, pad->low[a], 1});
      }
    }
  }
  // Backwards, the same elements.
  void add_box(int whole, int part, int64_t start, int64_t stride) {
    if (stride < 0) start += (extents_[part] - 1) * stride;
    boxes_.push_back({whole, part, start, std::abs(stride)});
  }
  void add_reduce(const Op& op, const ir::Reduce& reduce) {
    size_t next = 0;
    for (size_t a = 0; a < rank(op.inputs[0]); ++a) {
      const auto dim = static_cast<int64_t>(a);
      const bool goes = std::binary_search(reduce.dims.begin(), reduce.dims.end(), dim);
      if (reduce.parts > 0 && dim == reduce.dims[0]) {
        fixed_[axis(op.inputs[0], a)] = true;
        fixed_[axis(op.output, next++)] = true;
      } else if (!goes) {
        same_.unite(axis(op.inputs[0], a), axis(op.output, next++));
      }
    }
  }

  // Lets a reshape cut axes, unless some op would be cut where it cannot be.
  bool take(const Op& op) {
    const std::vector<Cuts> before = cuts_;
    const size_t count = groups_.size();
    std::vector<int> from, to;
    int64_t from_size = 1, to_size = 1;
    size_t a = 0, b = 0;
    const std::vector<ir::Axis>&old = fusion_.values[op.inputs[0]].axes, &now = fusion_.values[op.output].axes;
    while (a < old.size() || b < now.size()) {
      const bool left = b == now.size() || (a < old.size() && from_size <= to_size);
      if (left) {
        from_size *= old[a].extent;
        from.push_back(axis(op.inputs[0], a++));
      } else {
        to_size *= now[b].extent;
        to.push_back(axis(op.output, b++));
      }
      if (from_size == 0 || to_size == 0) return false;
      const bool rest_is_one = from_size == to_size && from_size > 1;
      if (!rest_is_one && (a < old.size() || b < now.size())) continue;
      groups_.push_back({std::move(from), std::move(to)});
      from.clear();
      to.clear();
      from_size = to_size = 1;
    }
    if (spread()) return true;
    groups_.resize(count);
    cuts_ = before;
    return false;
  }

  // Hands cuts on until nothing changes. False where an axis cannot be cut so.
  bool spread() {
    for (changed_ = true; changed_;) {
      changed_ = false;
      for (const Group& group : groups_) {
        if (!agree(group)) return false;
      }
      for (const Box& box : boxes_) {
        if (!agree(box)) return false;
      }
      for (const Row& row : rows_) {
        if (!agree(row)) return false;
      }
    }
    for (size_t id = 0; id < fusion_.values.size(); ++id) {
      size_t parts = 0;
      for (size_t a = 0; a < rank(static_cast<ValueId>(id)); ++a) parts += cuts_of(axis(id, a)).size() + 1;
      if (parts > std::max(kMaxParts, rank(static_cast<ValueId>(id)))) return false;
    }
    return true;
  }

  const Cuts& cuts_of(int id) { return cuts_[same_.find(id)]; }
  std::vector<int64_t> parts_of(int id) {
    std::vector<int64_t> parts;
    int64_t inner = 1;
    for (int64_t cut : cuts_of(id)) {
      parts.insert(parts.begin(), cut / inner);
      inner = cut;
    }
    parts.insert(parts.begin(), extents_[id] / inner);
    return parts;
  }

  bool cut(int id, int64_t at) {
    const int64_t extent = extents_[id];
    if (at <= 1 || at >= extent) return true;
    Cuts& cuts = cuts_[same_.find(id)];
    if (std::binary_search(cuts.begin(), cuts.end(), at)) return true;
    const bool divides =
        std::all_of(cuts.begin(), cuts.end(), [&](int64_t other) { return at % other == 0 || other % at == 0; });
    if (extent % at != 0 || !divides || fixed_[same_.find(id)]) return false;
    cuts.insert(std::lower_bound(cuts.begin(), cuts.end(), at), at);
    return changed_ = true;
  }

  bool agree(const Group& group) {
    std::set<int64_t> all;
    for (const std::vector<int>* side : {&group.from, &group.to}) {
      int64_t inner = 1;
      for (size_t i = side->size(); i-- > 0;) {
        for (int64_t at : cuts_of((*side)[i])) all.insert(at * inner);
        inner *= extents_[(*side)[i]];
        all.insert(inner);
      }
    }
    for (const std::vector<int>* side : {&group.from, &group.to}) {
      int64_t inner = 1;
      for (size_t i = side->size(); i-- > 0;) {
        const int64_t outer = inner * extents_[(*side)[i]];
        for (auto at = all.upper_bound(inner); at != all.end() && *at < outer; ++at) {
          if (*at % inner != 0 || !cut((*side)[i], *at / inner)) return false;
        }
        inner = outer;
      }
    }
    return true;
  }

  bool agree(const Box& box) {
    const Cuts whole = cuts_of(box.whole), part = cuts_of(box.part);
    const int64_t count = extents_[box.part], stride = count > 1 ? box.stride : 1;
    for (int64_t at : part) {
      if (box.start % (at * stride) >= stride || !cut(box.whole, at * stride)) return false;
    }
    const auto ranges = part_ranges(parts_of(box.whole), box.start, count, stride);
    if (!ranges) return false;
    int64_t inner = 1;
    for (size_t i = ranges->size(); i-- > 0;) {
      inner *= (*ranges)[i].count;
      if (!cut(box.part, inner)) return false;
    }
    return true;
  }

  // Side by side along the slowest part alone.
  bool agree(const Row& row) {
    std::set<int64_t> all(cuts_of(row.whole).begin(), cuts_of(row.whole).end());
    for (int part : row.parts) all.insert(cuts_of(part).begin(), cuts_of(part).end());
    for (int64_t at : all) {
      if (!cut(row.whole, at)) return false;
      for (int part : row.parts) {
        if (extents_[part] % at != 0 || !cut(part, at)) return false;
      }
    }
    return true;
  }

  const Fusion& fusion_;
  std::vector<int> first_;  // by value, the number of its first axis; what stands between a pad's ends comes last
  std::vector<int64_t> extents_;
  UnionFind same_;
  std::vector<bool> fixed_;  // by set, in the end
  std::vector<Cuts> cuts_;   // by set
  std::vector<Box> boxes_;
  std::vector<Row> rows_;
  std::vector<Group> groups_;
  std::set<ValueId> moved_;
  int next_middle_ = 0;
  bool changed_ = false;
};

}  // namespace

AxisCuts cut_axes(const Fusion& fusion) { return Solver(fusion).result(); }

std::optional<std::vector<PartRange>> part_ranges(const std::vector<int64_t>& parts, int64_t start, int64_t count,
                                                  int64_t stride) {
  if (stride < 0 && count > 1) {  // the same elements backwards, in every part
    auto ranges = part_ranges(parts, start + (count - 1) * stride, count, -stride);
    for (size_t i = 0; ranges && i < ranges->size(); ++i) {
      PartRange& range = (*ranges)[i];
      range.start += (range.count - 1) * range.stride;
      range.stride *= -1;
    }
    return ranges;
  }
  std::vector<PartRange> ranges(parts.size());
  for (size_t i = parts.size(); i-- > 0;) {
    const int64_t extent = parts[i];
    if (count <= 1) stride = 1;
    const int64_t own = extent / std::max<int64_t>(stride, 1);  // of each block of so many elements
    if (i == 0) {
      ranges[i] = {start, count, stride};
    } else if (own > 0 && extent % stride == 0 && start % extent < stride && count % own == 0) {
      ranges[i] = {start % extent, own, stride};
      start /= extent;
      count /= own;
      stride = 1;
    } else if (stride > 1 && extent > 0 && stride % extent == 0) {
      ranges[i] = {start % extent, 1, 1};
      start /= extent;
      stride /= extent;
    } else {
      if (count == 0 || stride > 1 || start / extent != (start + count - 1) / extent) return std::nullopt;
      ranges[i] = {start % extent, count, 1};
      start /= extent;
      count = 1;
    }
  }
  return ranges;
}

}  // namespace jf::plan
