#include "graph/groups.h"

#include <functional>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/lists.h"
#include "base/union_find.h"

namespace jf::graph {
namespace {

using schedule::AxisTree;
using schedule::InsertStep;
using schedule::MergeStep;
using schedule::SplitStep;
using schedule::SwizzleStep;

// Gives equal keys equal numbers.
template <class Key>
class Numbering {
 public:
  int operator()(const Key& key) { return numbers_.emplace(key, static_cast<int>(numbers_.size())).first->second; }

 private:
  std::map<Key, int> numbers_;
};

// In place of an extent in the key of a transform.
constexpr int64_t kMerge = -1, kSwizzle = -2;

// The part of a root axis that a derived axis counts: every `step` elements, `extent` of them. An axis is a list of
// parts, the slowest first.
struct Part {
  int root;
  int64_t step, extent;
  auto operator<=>(const Part&) const = default;
};
using Parts = std::vector<Part>;

// Walks forests with their roots in the given groups and numbers equal parts equally.
class PartNamer {
 public:
  explicit PartNamer(int first_free_root) : next_root_(first_free_root) {}

  // One number per node. `parts` holds those of the roots and gets those of every other node.
  std::vector<int> name(const AxisTree& tree, std::vector<Parts>& parts) {
    for (const schedule::Step& step : tree.steps) {
      if (const SplitStep* s = std::get_if<SplitStep>(&step)) {
        std::tie(parts[s->outer], parts[s->inner]) = split(parts[s->input], tree, *s);
      } else if (const MergeStep* m = std::get_if<MergeStep>(&step)) {
        parts[m->output] = merge(parts[m->outer], parts[m->inner]);
      } else if (const SwizzleStep* w = std::get_if<SwizzleStep>(&step)) {
        parts[w->output] = swizzle(parts[w->x], parts[w->y], tree.extents[w->output]);
      }
    }
    std::vector<int> names;
    for (const Parts& p : parts) names.push_back(number_(p));
    return names;
  }

 private:
  std::pair<Parts, Parts> split(const Parts& input, const AxisTree& tree, const SplitStep& s) {
    const int64_t extent = tree.extents[s.input];
    const int64_t outer_extent = tree.extents[s.outer], inner_extent = tree.extents[s.inner];
    if (extent > 1 && extent == outer_extent * inner_extent) {
      Parts outer = input, inner;
      int64_t rest = inner_extent;  // what the inner axis still has to take, from the fastest part on
      while (rest > 1 && rest % outer.back().extent == 0) {
        rest /= outer.back().extent;
        inner.insert(inner.begin(), outer.back());
        outer.pop_back();
      }
      if (rest > 1 && outer.back().extent % rest == 0) {
        const Part part = outer.back();
        inner.insert(inner.begin(), {part.root, part.step, rest});
        outer.back() = {part.root, part.step * rest, part.extent / rest};
        rest = 1;
      }
      // An axis of extent 1 still says where it stands.
      if (outer.empty()) outer = {{input[0].root, input[0].step * input[0].extent, 1}};
      if (inner.empty()) inner = {{input.back().root, input.back().step, 1}};
      if (rest == 1) return {outer, inner};
    }
    // With a remainder, or across parts, the results are new roots.
    const int root = opaque({number_(input), outer_extent, inner_extent});
    return {Parts{{root, 1, outer_extent}}, Parts{{root + 1, 1, inner_extent}}};
  }

  Parts swizzle(const Parts& x, const Parts& y, int64_t extent) {
    if (extent == 1) return y;
    return {{opaque({number_(y), number_(x), kSwizzle}), 1, extent}};
  }

  // Two roots that only the same transform of the same axes makes again.
  int opaque(const std::tuple<int, int64_t, int64_t>& key) {
    const auto [entry, fresh] = opaque_.emplace(key, next_root_);
    if (fresh) next_root_ += 2;
    return entry->second;
  }

  static Parts merge(const Parts& outer, const Parts& inner) {
    Parts merged;
    for (const Parts* side : {&outer, &inner}) {
      for (const Part& part : *side) {
        if (part.extent == 1) continue;
        Part* last = merged.empty() ? nullptr : &merged.back();
        if (last != nullptr && last->root == part.root && last->step == part.step * part.extent) {
          *last = {part.root, part.step, last->extent * part.extent};
        } else {
          merged.push_back(part);
        }
      }
    }
    return merged.empty() ? outer : merged;
  }

  int next_root_;
  Numbering<Parts> number_;
  std::map<std::tuple<int, int64_t, int64_t>, int> opaque_;
};

// Exact groups: equal transforms of equal groups.
class TransformNamer {
 public:
  explicit TransformNamer(int first_free) : next_(first_free) {}

  std::vector<int> name(const AxisTree& tree, std::vector<int>& names) {
    for (const schedule::Step& step : tree.steps) {
      if (const SplitStep* s = std::get_if<SplitStep>(&step)) {
        std::tie(names[s->outer], names[s->inner]) =
            results({names[s->input], tree.extents[s->outer], tree.extents[s->inner]});
      } else if (const MergeStep* m = std::get_if<MergeStep>(&step)) {
        names[m->output] = results({names[m->outer], names[m->inner], kMerge}).first;
      } else if (const SwizzleStep* w = std::get_if<SwizzleStep>(&step)) {
        names[w->output] = results({names[w->y], names[w->x], kSwizzle}).first;
      }
    }
    return names;
  }

 private:
  // (input, outer and inner extent) of a split, (outer, inner, kMerge), (y, x, kSwizzle).
  using Key = std::tuple<int, int64_t, int64_t>;
  std::pair<int, int> results(const Key& key) {
    const auto [entry, fresh] = made_.emplace(key, next_);
    if (fresh) next_ += 2;
    return {entry->second, entry->second + 1};
  }

  int next_;
  std::map<Key, int> made_;
};

void append(std::vector<int>& all, const std::vector<int>& more) { all.insert(all.end(), more.begin(), more.end()); }

// The names of one mapping, value by value in the order of their definitions. Namer walks a forest from its roots, each
// of which has the Name of its set.
template <class Namer, class Name>
class Naming {
 public:
  Naming(int count, UnionFind sets, std::function<Name(int set, int64_t extent)> root)
      : namer_(count), sets_(std::move(sets)), root_(std::move(root)) {}

  // `part`: the node that stands for an axis of the value although it is no root; -1 for none.
  void add(const AxisTree& tree, int first, int part) {
    std::vector<Name> names;
    for (size_t node = 0; node < tree.extents.size(); ++node) {
      const int set = sets_.find(first + static_cast<int>(node));
      const auto made = made_.find(set);
      names.push_back(made == made_.end() ? root_(set, tree.extents[node]) : made->second);
    }
    append(numbers, namer_.name(tree, names));
    if (part >= 0) made_.emplace(sets_.find(first + part), names[part]);
  }

  std::vector<int> numbers;  // by node of all values

 private:
  Namer namer_;
  UnionFind sets_;
  std::function<Name(int, int64_t)> root_;
  std::map<int, Name> made_;  // by set: the name that a transform gave it
};

}  // namespace

IndexGraph::IndexGraph(const ir::Fusion& fusion, const schedule::Schedule& schedule, bool through_inputs) {
  int count = 0;
  for (size_t id = 0; id < fusion.values.size(); ++id) {
    trees_.push_back(schedule::replay(schedule.domains[id], fusion.values[id].name));
    first_.push_back(count);
    count += static_cast<int>(trees_.back().extents.size());
  }

  UnionFind exact(count), permissive(count), loops(count);
  for (const ir::Op& op : fusion.ops) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const ir::ValueId operand = op.inputs[i];
      if (!through_inputs && contains(fusion.inputs, operand)) continue;
      const std::vector<int> axes = schedule::result_axes(fusion, op, i);
      const std::vector<int> nodes = schedule::axis_nodes(fusion, schedule.domains[operand], operand);
      // The roots of a reduction are the operand's axes, kinds and all.
      const bool folds = std::holds_alternative<ir::Reduce>(op.attribute) || op.kind == ir::OpKind::kCombine;
      for (size_t a = 0; a < axes.size(); ++a) {
        if (axes[a] < 0) continue;
        const int from = first_[operand] + nodes[a], to = first_[op.output] + axes[a];
        permissive.unite(from, to);
        const ir::AxisKind kind = fusion.values[operand].axes[a].kind;
        if (folds || kind == fusion.values[op.output].axes[axes[a]].kind) exact.unite(from, to);
      }
      for (int l = 0; l < schedule.domains[operand].inline_at; ++l) {
        loops.unite(first_[operand] + trees_[operand].loop[l], first_[op.output] + trees_[op.output].loop[l]);
      }
    }
  }
  for (size_t id = 0; id < trees_.size(); ++id) {
    for (const schedule::Step& step : trees_[id].steps) {
      const InsertStep* insert = std::get_if<InsertStep>(&step);
      if (insert != nullptr) permissive.unite(first_[id] + insert->output, first_[insert->like] + insert->like_axis);
    }
  }

  auto parts = [](int set, int64_t extent) { return Parts{{set, 1, extent}}; };
  Naming<TransformNamer, int> by_transforms(count, exact, [](int set, int64_t) { return set; });
  Naming<PartNamer, Parts> by_parts(count, exact, parts), by_permissive_parts(count, permissive, parts);
  for (size_t id = 0; id < trees_.size(); ++id) {
    const schedule::Domain& domain = schedule.domains[id];
    const int part = schedule::part_node(domain);
    by_transforms.add(trees_[id], first_[id], part);
    by_parts.add(trees_[id], first_[id], part);
    by_permissive_parts.add(trees_[id], first_[id], part);
  }
  exact_ = std::move(by_transforms.numbers);
  almost_exact_ = std::move(by_parts.numbers);
  permissive_ = std::move(by_permissive_parts.numbers);
  for (int number = 0; number < count; ++number) loop_.push_back(loops.find(number));
}

int IndexGraph::group(Mapping mapping, AxisId axis) const {
  JF_CHECK(axis.node >= 0 && axis.node < static_cast<int>(trees_.at(axis.value).extents.size()), "node ", axis.node,
           " of value ", axis.value);
  const int number = first_[axis.value] + axis.node;
  switch (mapping) {
    case Mapping::kExact: return exact_[number];
    case Mapping::kAlmostExact: return almost_exact_[number];
    case Mapping::kPermissive: return permissive_[number];
    case Mapping::kLoop: return loop_[number];
  }
  JF_CHECK(false, "mapping ", static_cast<int>(mapping));
}

}  // namespace jf::graph
