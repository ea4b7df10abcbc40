#include "schedule/axes.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/integers.h"
#include "base/lists.h"

namespace jf::schedule {
namespace {

std::string list(const AxisTree& tree) {
  std::string text;
  for (int node : tree.loop) text += cat(text.empty() ? "" : ",", tree.extents[node]);
  return cat("[", text, "]");
}

// A product of numbers that are not negative, or the largest number.
int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

struct Applier {
  AxisTree& tree;
  const std::string& value;

  int add(int64_t extent, bool reduced, bool inserted, int64_t scanned = 0) {
    tree.extents.push_back(extent);
    tree.scanned.push_back(scanned);
    tree.reduced.push_back(reduced);
    tree.inserted.push_back(inserted);
    return static_cast<int>(tree.extents.size()) - 1;
  }
  int rank() const { return static_cast<int>(tree.loop.size()); }
  void require_axis(const char* call, int axis, int count) const {
    JF_REQUIRE(axis >= 0 && axis <= rank() - count, "[", call, "] ", value, " has loop axes ", list(tree), "; axis ",
               axis, count == 2 ? " and the next one are not among them" : " is not among them");
  }

  void operator()(const Split& s) {
    require_axis("split", s.axis, 1);
    JF_REQUIRE(s.factor > 0, "[split] axis ", s.axis, " of ", value, ": expected a positive factor, got ", s.factor);
    JF_REQUIRE(s.factor <= kMaxFactor, "[split] axis ", s.axis, " of ", value, ": expected a factor up to ", kMaxFactor,
               ", got ", s.factor);
    const int input = tree.loop[s.axis];
    const int64_t extent = tree.extents[input], quotient = extent / s.factor + (extent % s.factor != 0);
    const bool reduced = tree.reduced[input], inserted = tree.inserted[input];
    const int64_t apart = tree.scanned[input], within = s.inner ? s.factor : quotient;
    const int outer = add(s.inner ? quotient : s.factor, reduced, inserted, times(apart, within));
    const int inner = add(within, reduced, inserted, apart);
    tree.steps.push_back(SplitStep{input, outer, inner});
    tree.loop[s.axis] = outer;
    tree.loop.insert(tree.loop.begin() + s.axis + 1, inner);
  }
  void operator()(const Merge& m) {
    require_axis("merge", m.axis, 2);
    const int outer = tree.loop[m.axis], inner = tree.loop[m.axis + 1];
    JF_REQUIRE(tree.reduced[outer] == tree.reduced[inner], "[merge] axes ", m.axis, " and ", m.axis + 1, " of ", value,
               ": one is reduced and the other is not; reorder first");
    const bool goes_on = tree.scanned[outer] == times(tree.scanned[inner], tree.extents[inner]);
    JF_REQUIRE(goes_on, "[merge] axes ", m.axis, " and ", m.axis + 1, " of ", value,
               ": it is scanned along one of them and the other does not go on from it; reorder first");
    int64_t extent = 0;
    JF_REQUIRE(!__builtin_mul_overflow(tree.extents[outer], tree.extents[inner], &extent), "[merge] axes ", m.axis,
               " and ", m.axis + 1, " of ", value, " have extents ", tree.extents[outer], " and ", tree.extents[inner],
               "; their product is too large");
    const int output =
        add(extent, tree.reduced[outer], tree.inserted[outer] && tree.inserted[inner], tree.scanned[inner]);
    tree.steps.push_back(MergeStep{outer, inner, output});
    tree.loop[m.axis] = output;
    tree.loop.erase(tree.loop.begin() + m.axis + 1);
  }
  void operator()(const Reorder& r) {
    std::vector<int> sorted = r.order;
    std::sort(sorted.begin(), sorted.end());
    bool permutation = static_cast<int>(sorted.size()) == rank();
    for (int i = 0; permutation && i < rank(); ++i) permutation = sorted[i] == i;
    JF_REQUIRE(permutation, "[reorder] ", value, " has ", rank(), " loop axes ", list(tree),
               "; the order must name each of them once");
    const std::vector<int> old = tree.loop;
    for (int i = 0; i < rank(); ++i) tree.loop[i] = old[r.order[i]];
  }
  void operator()(const Insert& i) {
    JF_REQUIRE(i.axis >= 0 && i.axis <= rank(), "[insert] ", value, " has loop axes ", list(tree),
               "; a new axis cannot stand at ", i.axis);
    const int output = add(i.extent, false, true);
    tree.steps.push_back(InsertStep{output, i.like, i.like_axis});
    tree.loop.insert(tree.loop.begin() + i.axis, output);
  }
  void operator()(const Drop& d) {
    require_axis("drop", d.axis, 1);
    const int node = tree.loop[d.axis];
    JF_REQUIRE(tree.extents[node] == 1, "[drop] axis ", d.axis, " of ", value, " has extent ", tree.extents[node],
               "; only an axis of extent 1 can go");
    tree.dropped.push_back(node);
    tree.loop.erase(tree.loop.begin() + d.axis);
  }
  void operator()(const Swizzle& s) {
    require_axis("swizzle", s.x, 1);
    require_axis("swizzle", s.y, 1);
    JF_REQUIRE(s.x != s.y, "[swizzle] ", value, ": expected two axes, got ", s.x, " twice");
    const int x = tree.loop[s.x], y = tree.loop[s.y];
    const int64_t extent = tree.extents[x];
    JF_REQUIRE(extent == tree.extents[y] && is_power_of_two(extent), "[swizzle] axes ", s.x, " and ", s.y, " of ",
               value, " have extents ", extent, " and ", tree.extents[y], "; expected one power of two, split first");
    JF_REQUIRE(tree.reduced[x] == tree.reduced[y], "[swizzle] axes ", s.x, " and ", s.y, " of ", value,
               ": one is reduced and the other is not");
    JF_REQUIRE(tree.scanned[x] == 0 && tree.scanned[y] == 0, "[swizzle] axes ", s.x, " and ", s.y, " of ", value,
               ": it is scanned along one of them, in order");
    const int output = add(extent, tree.reduced[y], tree.inserted[y]);
    tree.inserted[x] = tree.inserted[x] && tree.inserted[y];  // where x moves at a fixed output, y moves
    tree.steps.push_back(SwizzleStep{x, y, output});
    tree.loop[s.y] = output;
  }
};

}  // namespace

void apply(AxisTree& tree, const Transform& transform, const std::string& value) {
  std::visit(Applier{tree, value}, transform);
}

int part_node(const Domain& domain) {
  if (!domain.in_parts) return -1;
  const int outer = static_cast<int>(domain.logical.size());
  return std::get<Split>(domain.transforms.front()).inner ? outer + 1 : outer;
}

AxisTree replay(const Domain& domain, const std::string& value) {
  AxisTree tree;
  tree.extents = domain.logical;
  tree.reduced = domain.reduced;
  tree.reduced.resize(domain.logical.size(), false);
  tree.inserted.resize(domain.logical.size(), false);
  tree.scanned.resize(domain.logical.size(), 0);
  if (domain.scanned >= 0) tree.scanned[domain.scanned] = 1;
  for (size_t i = 0; i < domain.logical.size(); ++i) tree.loop.push_back(static_cast<int>(i));
  for (const Transform& transform : domain.transforms) {
    apply(tree, transform, value);
    if (!domain.in_parts || &transform != &domain.transforms.front()) continue;
    const int part = part_node(domain);
    tree.reduced[part] = false;
    tree.scanned[part] = 0;
  }
  return tree;
}

int scan_position(const Domain& domain, const std::string& value) {
  if (domain.scanned < 0) return -1;
  const AxisTree tree = replay(domain, value);
  int position = -1;
  bool threads = false;
  for (size_t l = 0; l < domain.loop.size(); ++l) {
    const auto& [extent, parallel] = domain.loop[l];
    if (tree.scanned[tree.loop[l]] == 0 || extent == 1) continue;
    if (position < 0 && (is_thread(parallel) || parallel == Parallel::kUnroll)) position = static_cast<int>(l);
    threads = threads || is_thread(parallel);
  }
  return threads ? position : -1;
}

std::vector<int> axis_nodes(const ir::Fusion& fusion, const Domain& domain, ValueId value) {
  std::vector<int> nodes;
  for (size_t root = 0; root < domain.logical.size(); ++root) {
    const bool joined = std::any_of(domain.ragged.begin(), domain.ragged.end(), [&](const Ragged& ragged) {
      return std::find(ragged.by.end() - ragged.combined, ragged.by.end(), static_cast<int>(root)) != ragged.by.end();
    });
    const bool reduced = joined || (!domain.reduced.empty() && domain.reduced[root]);
    const Split* parts =
        domain.in_parts && !domain.reduced.empty() ? &std::get<Split>(domain.transforms.front()) : nullptr;
    if (parts != nullptr && parts->axis == static_cast<int>(root)) {
      nodes.push_back(part_node(domain));
    } else if (!reduced) {
      nodes.push_back(static_cast<int>(root));
    }
  }
  JF_CHECK(nodes.size() == fusion.values[value].axes.size(), fusion.values[value].name, " has ", nodes.size(),
           " axes in its domain");
  return nodes;
}

std::vector<int> result_axes(const ir::Fusion& fusion, const ir::Op& op, size_t operand) {
  const std::vector<ir::Axis>& from = fusion.values[op.inputs[operand]].axes;
  const std::vector<ir::Axis>& to = fusion.values[op.output].axes;
  std::vector<int> axes(from.size(), -1);
  const ir::Dims* dims = std::get_if<ir::Dims>(&op.attribute);
  if (op.kind == ir::OpKind::kBroadcast) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].extent == to[dims->dims[i]].extent) axes[i] = static_cast<int>(dims->dims[i]);
    }
  } else if (op.kind == ir::OpKind::kTranspose) {
    for (size_t i = 0; i < to.size(); ++i) axes[dims->dims[i]] = static_cast<int>(i);
  } else if (op.kind == ir::OpKind::kSqueeze) {
    int next = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      const bool gone = contains(dims->dims, static_cast<int64_t>(i));
      if (!gone) axes[i] = next++;
    }
  } else if (const auto* slice = std::get_if<ir::Slice>(&op.attribute)) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (slice->keeps(i, to[i].extent, from[i].extent)) axes[i] = static_cast<int>(i);
    }
  } else if (const ir::Take* take = std::get_if<ir::Take>(&op.attribute); take != nullptr && operand == 0) {
    for (size_t i = 0; i < from.size(); ++i) {
      const bool indexed = contains(take->axes, static_cast<int64_t>(i));
      if (indexed || take->dims[i] < 0 || take->starts[i] != 0) continue;
      if (from[i].extent == to[take->dims[i]].extent) axes[i] = static_cast<int>(take->dims[i]);
    }
  } else if (const ir::Search* search = std::get_if<ir::Search>(&op.attribute); search != nullptr && operand == 0) {
    for (size_t i = 0; i < search->dims.size(); ++i) axes[i] = static_cast<int>(search->dims[i]);
  } else if (const ir::Pad* pad = std::get_if<ir::Pad>(&op.attribute)) {
    for (size_t i = 0; i < from.size(); ++i) {
      const bool whole = pad->low[i] == 0 && pad->from.keeps(i, pad->counts[i], from[i].extent);
      if (whole && from[i].extent == to[i].extent) axes[i] = static_cast<int>(i);
    }
  } else if (op.kind == ir::OpKind::kSpread) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (static_cast<int64_t>(i) != dims->dims[0]) axes[i] = static_cast<int>(i);
    }
  } else if (const ir::Nest* nest = std::get_if<ir::Nest>(&op.attribute)) {
    const bool partition = op.kind == ir::OpKind::kPartition;
    const std::vector<int> ragged = ir::ragged_axes(fusion.values[op.output]);
    if (operand > 0) {
      const std::vector<int64_t>& by = to[partition ? ragged[(operand - 1) / 2] : nest->axis].by;
      return {by.begin(), by.end()};
    }
    std::vector<int64_t> cut = {nest->axis};
    for (size_t i = 0; i < nest->also.size(); i += 2) cut.push_back(nest->also[i]);
    int before = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      const bool is_cut = contains(cut, static_cast<int64_t>(i));
      if (!is_cut) axes[i] = static_cast<int>(i) + before;
      if (is_cut && partition) before += static_cast<int>(nest->components);
    }
  } else if (op.kind == ir::OpKind::kCombine) {
    for (size_t i = 0; operand == 0 && i < from.size(); ++i) axes[i] = static_cast<int>(i);
  } else if (op.kind == ir::OpKind::kCopy || op.kind == ir::OpKind::kTake || op.kind == ir::OpKind::kPlace ||
             op.kind == ir::OpKind::kSearch || ir::info(op.kind).op_class == ir::OpClass::kPointwise ||
             ir::info(op.kind).op_class == ir::OpClass::kReduce || ir::info(op.kind).op_class == ir::OpClass::kScan) {
    for (size_t i = 0; i < from.size(); ++i) axes[i] = static_cast<int>(i);
  }
  return axes;
}

Reading reading(const ir::Fusion& fusion, const ir::Op& op, size_t operand) {
  const std::vector<int64_t> extents = ir::shape(fusion.values[op.inputs[operand]]);
  const std::vector<int> axes = result_axes(fusion, op, operand);
  if (op.kind == ir::OpKind::kReshape) return {strides(ir::shape(fusion.values[op.output]))};
  const ir::Pad* pad = std::get_if<ir::Pad>(&op.attribute);
  const ir::Slice* slice = pad != nullptr ? &pad->from : std::get_if<ir::Slice>(&op.attribute);
  const bool folds = std::holds_alternative<ir::Reduce>(op.attribute) || op.kind == ir::OpKind::kCombine;
  Reading reading{std::vector<int64_t>(folds ? extents.size() : fusion.values[op.output].axes.size(), 0)};
  const ir::Take* take = operand == 0 ? std::get_if<ir::Take>(&op.attribute) : nullptr;
  int64_t stride = 1;
  for (size_t a = extents.size(); a-- > 0;) {
    if (take != nullptr) {
      if (take->dims[a] >= 0) reading.weights[take->dims[a]] = stride * take->strides[a];
      reading.offset += stride * take->starts[a];
      for (size_t k = 0; k < take->axes.size(); ++k) {
        if (take->axes[k] == static_cast<int64_t>(a)) reading.indices.push_back({k + 1, take->limits[k], stride});
      }
    } else if (slice != nullptr) {
      reading.weights[a] = stride * slice->strides[a];
      reading.offset += stride * slice->starts[a];
      if (pad != nullptr) {
        const int64_t end = pad->low[a] + pad->counts[a], extent = fusion.values[op.output].axes[a].extent;
        reading.offset -= stride * slice->strides[a] * pad->low[a];
        const bool all = pad->low[a] == 0 && end == extent;
        if (!all) reading.ranges.push_back({static_cast<int>(a), pad->low[a], end == extent ? kNoEnd : end});
      }
    } else if (op.kind == ir::OpKind::kSpread && axes[a] < 0) {
      reading.weights.push_back(stride);  // of the part, the node after the roots
    } else if (axes[a] >= 0) {
      reading.weights[axes[a]] = stride;
    }
    stride *= extents[a];
  }
  return reading;
}

Writing writing(const ir::Fusion& fusion, ValueId output) {
  std::vector<int64_t> shape = ir::shape(fusion.values[output]);
  std::vector<int64_t> starts(shape.size(), 0);
  for (const ir::Op& op : fusion.ops) {
    const ir::Place* place = op.output == output ? std::get_if<ir::Place>(&op.attribute) : nullptr;
    if (place == nullptr) continue;
    shape = place->shape;
    starts = place->starts;
  }
  Writing writing{std::vector<int64_t>(shape.size(), 0)};
  int64_t stride = 1;
  for (size_t a = shape.size(); a-- > 0; stride *= shape[a]) {
    writing.weights[a] = stride;
    writing.offset += stride * starts[a];
  }
  return writing;
}

}  // namespace jf::schedule
