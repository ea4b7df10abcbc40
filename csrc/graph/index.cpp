#include "graph/index.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "base/lists.h"

namespace jf::graph {

using loops::IndexKind;
using loops::IndexPtr;
using schedule::MergeStep;
using schedule::SplitStep;
using schedule::SwizzleStep;

// An axis as mixed-radix digits, the slowest first: each adds digit * coefficient to the position. The slowest digit is
// not reduced by its extent. No digits: the axis does not count.
struct Indexer::Digit {
  int64_t extent;
  int64_t coefficient;
};

namespace {

// Digits of a merged axis from those of its two axes; neighbours that continue each other become one.
template <class Digit>
std::vector<Digit> joined(const std::vector<Digit>& outer, const std::vector<Digit>& inner, bool in_bounds) {
  std::vector<Digit> all = outer, result;
  all.insert(all.end(), inner.begin(), inner.end());
  for (size_t i = 0; i < all.size(); ++i) {
    const Digit& digit = all[i];
    // A digit of extent 1 is always 0; the slowest one only in bounds.
    if (digit.extent == 1 && (i > 0 || in_bounds)) continue;
    if (!result.empty() && result.back().coefficient == digit.coefficient * digit.extent) {
      result.back() = {result.back().extent * digit.extent, digit.coefficient};
    } else {
      result.push_back(digit);
    }
  }
  return result;
}

template <class Digit>
int64_t product(const std::vector<Digit>& digits) {
  int64_t extent = 1;
  for (const Digit& digit : digits) extent *= digit.extent;
  return extent;
}

// Cuts the fastest digits that count up to `factor` off `outer`. False where a digit would be cut unevenly.
template <class Digit>
bool cut(std::vector<Digit>& outer, int64_t outer_extent, int64_t factor, std::vector<Digit>& inner) {
  int64_t rest = factor;
  while (rest > 1 && outer.size() > 1 && rest % outer.back().extent == 0) {
    rest /= outer.back().extent;
    inner.insert(inner.begin(), outer.back());
    outer.pop_back();
  }
  if (rest > 1) {
    Digit& last = outer.back();
    const bool slowest = outer.size() == 1;
    if (!slowest && last.extent % rest != 0) return false;
    inner.insert(inner.begin(), {rest, last.coefficient});
    last = {(last.extent + rest - 1) / rest, last.coefficient * rest};
  }
  // The slowest digit reaches as far as the axis does, beyond its bound where the split has a remainder.
  const int64_t faster = product(outer) / outer.front().extent;
  if (outer_extent % faster == 0) outer.front().extent = outer_extent / faster;
  return true;
}

bool is_linear(const IndexPtr& index) {
  switch (index->kind) {
    case loops::IndexKind::kConst:
    case loops::IndexKind::kVar: return true;
    case loops::IndexKind::kAdd:
    case loops::IndexKind::kMul: return is_linear(index->a) && is_linear(index->b);
    default: return false;
  }
}

// Of a sum with one term a / n: that term, and the sum of the others, where these follow no lanes for sure.
std::optional<std::pair<IndexPtr, IndexPtr>> quotient_of(const IndexPtr& index) {
  if (index->kind == loops::IndexKind::kDiv) {
    if (index->b->kind != loops::IndexKind::kConst) return std::nullopt;
    return std::pair(index, loops::constant(0));
  }
  if (index->kind != loops::IndexKind::kAdd) return std::nullopt;
  for (const auto& [sum, other] : {std::pair(index->a, index->b), std::pair(index->b, index->a)}) {
    if (!is_linear(other)) continue;
    if (const auto found = quotient_of(sum)) return std::pair(found->first, add(found->second, other));
  }
  return std::nullopt;
}

bool is_division(const IndexPtr& index) {
  return index->kind == loops::IndexKind::kDiv && index->b->kind == loops::IndexKind::kConst;
}

}  // namespace

Indexer::Indexer(const schedule::Domain& domain, std::vector<IndexPtr> loops)
    : tree_(schedule::replay(domain, "a value")), consumer_(tree_.extents.size(), -1), known_(tree_.extents.size()) {
  JF_CHECK(loops.size() == tree_.loop.size(), loops.size(), " indices for ", tree_.loop.size(), " loops");
  for (size_t s = 0; s < tree_.steps.size(); ++s) {
    if (const SplitStep* split = std::get_if<SplitStep>(&tree_.steps[s])) consumer_[split->input] = static_cast<int>(s);
    if (const MergeStep* merge = std::get_if<MergeStep>(&tree_.steps[s])) {
      consumer_[merge->outer] = consumer_[merge->inner] = static_cast<int>(s);
    }
    if (const SwizzleStep* swizzle = std::get_if<SwizzleStep>(&tree_.steps[s])) {
      consumer_[swizzle->y] = static_cast<int>(s);
    }
  }
  for (size_t i = 0; i < loops.size(); ++i) known_[tree_.loop[i]] = loops[i];
  for (int node : tree_.dropped) known_[node] = loops::constant(0);
  if (domain.loop.empty() || domain.loop.back().parallel != schedule::Parallel::kVector) return;
  lane_node_ = vector_node_ = tree_.loop.back();
  width_ = tree_.extents[lane_node_];
  known_[lane_node_] = loops::constant(0);
  for (const schedule::Step& step : tree_.steps) {
    const SplitStep* split = std::get_if<SplitStep>(&step);
    // A swizzle can make the outer axis move with the lanes.
    if (split == nullptr || split->inner != lane_node_ || reaches_lane(split->outer)) continue;
    const IndexPtr base = index(split->input);
    lane_node_ = split->input;
    known_[lane_node_] = base;
    break;
  }
}

IndexPtr Indexer::lane_base() const {
  JF_CHECK(lane_node_ >= 0, "no vector axis");
  return known_[lane_node_];
}

void Indexer::use_lane(const LaneVariable& lane) {
  if (lane_node_ >= 0 && same(known_[lane_node_], lane.base)) known_[lane_node_] = lane.variable;
}

// The index of an axis at lane 0, from the loops below it.
IndexPtr Indexer::index(int node) const {
  if (known_[node] != nullptr) return known_[node];
  JF_CHECK(consumer_[node] >= 0, "axis ", node, " has neither loop nor transform");
  const schedule::Step& step = tree_.steps[consumer_[node]];
  if (const SplitStep* s = std::get_if<SplitStep>(&step)) {
    return add(mul(index(s->outer), loops::constant(tree_.extents[s->inner])), index(s->inner));
  }
  if (const SwizzleStep* s = std::get_if<SwizzleStep>(&step)) return bit_xor(index(s->x), index(s->output));
  const MergeStep& m = std::get<MergeStep>(step);
  const IndexPtr inner_extent = loops::constant(tree_.extents[m.inner]);
  return node == m.outer ? div(index(m.output), inner_extent) : mod(index(m.output), inner_extent);
}

bool Indexer::reaches_lane(int node) const {
  if (node == lane_node_ || node == vector_node_) return true;
  if (known_[node] != nullptr || consumer_[node] < 0) return false;
  const schedule::Step& step = tree_.steps[consumer_[node]];
  if (const SplitStep* s = std::get_if<SplitStep>(&step)) return reaches_lane(s->outer) || reaches_lane(s->inner);
  if (const SwizzleStep* s = std::get_if<SwizzleStep>(&step)) return reaches_lane(s->x) || reaches_lane(s->output);
  return reaches_lane(std::get<MergeStep>(step).output);
}

// Whether the axis has loops that do not run, though they have several iterations.
bool Indexer::misses_loops(int node) const {
  if (node == lane_node_ || node == vector_node_) return false;
  if (known_[node] != nullptr) return known_[node]->kind == IndexKind::kConst && tree_.extents[node] > 1;
  const schedule::Step& step = tree_.steps[consumer_[node]];
  if (const SplitStep* s = std::get_if<SplitStep>(&step)) return misses_loops(s->outer) || misses_loops(s->inner);
  if (const SwizzleStep* s = std::get_if<SwizzleStep>(&step)) return misses_loops(s->x) || misses_loops(s->output);
  return misses_loops(std::get<MergeStep>(step).output);
}

// Whether loops that do not run are swizzled with others.
bool Indexer::swizzles_missing(int node) const {
  if (known_[node] != nullptr || consumer_[node] < 0) return false;
  const schedule::Step& step = tree_.steps[consumer_[node]];
  if (const SplitStep* s = std::get_if<SplitStep>(&step)) {
    return swizzles_missing(s->outer) || swizzles_missing(s->inner);
  }
  if (const MergeStep* m = std::get_if<MergeStep>(&step)) return swizzles_missing(m->output);
  return misses_loops(node) || swizzles_missing(std::get<SwizzleStep>(step).output);
}

// Carries digits from axes to loops and adds up what they contribute.
struct Indexer::Walk {
  const Indexer& indexer;
  bool in_bounds;  // whether the position is only used where every index is in bounds
  std::vector<Digits> digits;
  IndexPtr sum = loops::constant(0);
  std::optional<int64_t> lane_step = 0;
  std::optional<loops::Cycle> cycle;

  Walk(const Indexer& of, bool only_in_bounds)
      : indexer(of), in_bounds(only_in_bounds), digits(of.tree_.extents.size()) {}

  // Adds the digits of an axis whose index is known as arithmetic.
  void settle(const Digits& of, const IndexPtr& at) {
    int64_t faster = 1;
    IndexPtr terms = loops::constant(0);
    for (size_t i = of.size(); i-- > 0;) {
      IndexPtr digit = div(at, loops::constant(faster));
      if (i > 0) digit = mod(digit, loops::constant(of[i].extent));
      terms = add(mul(digit, loops::constant(of[i].coefficient)), terms);
      faster *= of[i].extent;
    }
    sum = add(sum, terms);
  }
  // `at`: of lane 0, along the axis of the digits.
  void step_lanes(const Digits& of, const IndexPtr& at) {
    const auto& [period, place_step] = of.back();
    const bool even = of.size() == 1 || period % indexer.width_ == 0, round = of.size() == 2 && lane_step == 0;
    if (lane_step && even) return void(*lane_step += place_step);
    lose_step();
    if (round) cycle = {mod(at, loops::constant(period)), period, place_step, of.front().coefficient};
  }
  void lose_step() {
    lane_step.reset();
    cycle.reset();
  }

  // True when the axis is a loop, or known otherwise, so that nothing below it matters.
  bool ends_at(int node) {
    if (indexer.known_[node] == nullptr) return false;
    settle(digits[node], indexer.known_[node]);
    // The vector axis counts the lanes by itself, also where they are named after what it was split from.
    if (node == indexer.lane_node_ || node == indexer.vector_node_) step_lanes(digits[node], indexer.known_[node]);
    digits[node].clear();
    return true;
  }

  // For digits that cannot go on as digits.
  void settle_above_loops(int node) {
    settle(digits[node], indexer.index(node));
    if (indexer.reaches_lane(node)) lose_step();
  }

  void split(const SplitStep& s) {
    if (digits[s.input].empty() || ends_at(s.input)) return;
    Digits outer = digits[s.input], inner;
    if (cut(outer, indexer.tree_.extents[s.outer], indexer.tree_.extents[s.inner], inner)) {
      digits[s.outer] = std::move(outer);
      digits[s.inner] = std::move(inner);
    } else {
      settle_above_loops(s.input);
    }
    digits[s.input].clear();
  }
  void merge(const MergeStep& m) {
    Digits &outer = digits[m.outer], &inner = digits[m.inner];
    if (outer.empty() && inner.empty()) return;
    const int64_t outer_extent = indexer.tree_.extents[m.outer], inner_extent = indexer.tree_.extents[m.inner];
    if (!inner.empty() && product(inner) != inner_extent) {
      settle_above_loops(m.inner);
      inner.clear();
    }
    if (outer.empty()) outer = {{outer_extent, 0}};
    if (inner.empty()) inner = {{inner_extent, 0}};
    digits[m.output] = joined(outer, inner, in_bounds);
    outer.clear();
    inner.clear();
  }

  void swizzle(const SwizzleStep& s) {
    if (digits[s.y].empty() || ends_at(s.y)) return;
    settle_above_loops(s.y);
    digits[s.y].clear();
  }

  Position run(size_t first_step) {
    for (size_t i = first_step; i < indexer.tree_.steps.size(); ++i) {
      const schedule::Step& step = indexer.tree_.steps[i];
      if (const SplitStep* s = std::get_if<SplitStep>(&step)) split(*s);
      if (const MergeStep* m = std::get_if<MergeStep>(&step)) merge(*m);
      if (const SwizzleStep* s = std::get_if<SwizzleStep>(&step)) swizzle(*s);
    }
    for (size_t node = 0; node < digits.size(); ++node) {
      if (!digits[node].empty()) JF_CHECK(ends_at(static_cast<int>(node)), "axis ", node, " reaches no loop");
    }
    return {sum, lane_step, cycle};
  }
};

Position Indexer::position(std::span<const int64_t> weights) const {
  Walk walk(*this, true);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] != 0) walk.digits[i] = {{tree_.extents[i], weights[i]}};
  }
  return walk.run(0);
}

// By node of another tree: the node of this one with the same index, for roots and what both trees merge and split
// alike.
std::vector<int> Indexer::same_parts(const schedule::AxisTree& of, std::span<const int> root_of) const {
  std::vector<int> twins(of.extents.size(), -1);
  std::copy(root_of.begin(), root_of.end(), twins.begin());
  for (const schedule::Step& step : of.steps) {
    if (const SplitStep* split = std::get_if<SplitStep>(&step); split != nullptr && twins[split->input] >= 0) {
      const int taken = consumer_[twins[split->input]];
      const SplitStep* own = taken < 0 ? nullptr : std::get_if<SplitStep>(&tree_.steps[taken]);
      const bool alike = own != nullptr && tree_.extents[own->outer] == of.extents[split->outer] &&
                         tree_.extents[own->inner] == of.extents[split->inner];
      if (alike) twins[split->outer] = own->outer, twins[split->inner] = own->inner;
      continue;
    }
    const MergeStep* theirs = std::get_if<MergeStep>(&step);
    if (theirs == nullptr || twins[theirs->outer] < 0 || twins[theirs->inner] < 0) continue;
    const int taken = consumer_[twins[theirs->outer]];
    const MergeStep* own = taken < 0 ? nullptr : std::get_if<MergeStep>(&tree_.steps[taken]);
    if (own == nullptr || own->outer != twins[theirs->outer] || own->inner != twins[theirs->inner]) continue;
    twins[theirs->output] = own->output;
  }
  return twins;
}

std::optional<Position> Indexer::position(const schedule::AxisTree& of, std::span<const int64_t> weights,
                                          std::span<const int> root_of) const {
  std::vector<Digits> digits(of.extents.size());
  for (size_t node = 0; node < weights.size(); ++node) {
    if (weights[node] != 0) digits[node] = {{of.extents[node], weights[node]}};
  }
  const std::vector<int> twins = same_parts(of, root_of);
  // Apart: where an axis goes on from, what comes from above it would replace it.
  Walk walk(*this, true), apart(*this, true);
  IndexPtr swizzled = loops::constant(0);
  // Backwards, from parts to what they were cut from.
  for (auto step = of.steps.rbegin(); step != of.steps.rend(); ++step) {
    if (const SplitStep* s = std::get_if<SplitStep>(&*step)) {
      Digits outer = digits[s->outer], inner = digits[s->inner];
      if (outer.empty() && inner.empty()) continue;
      if (outer.empty()) outer = {{of.extents[s->outer], 0}};
      if (inner.empty()) inner = {{of.extents[s->inner], 0}};
      if (product(inner) != of.extents[s->inner]) {
        if (twins[s->inner] < 0) return std::nullopt;
        apart.digits[twins[s->outer]] = std::move(digits[s->outer]);
        apart.digits[twins[s->inner]] = std::move(digits[s->inner]);
        continue;
      }
      digits[s->input] = joined(outer, inner, true);
    } else if (const MergeStep* m = std::get_if<MergeStep>(&*step)) {
      Digits outer = digits[m->output], inner;
      if (outer.empty()) continue;
      if (!cut(outer, of.extents[m->output], of.extents[m->inner], inner)) {
        if (twins[m->output] < 0) return std::nullopt;
        apart.digits[twins[m->output]] = std::move(digits[m->output]);
        continue;
      }
      digits[m->outer] = std::move(outer);
      digits[m->inner] = std::move(inner);
    } else if (const SwizzleStep* w = std::get_if<SwizzleStep>(&*step)) {
      const Digits& stored = digits[w->output];
      if (stored.empty()) continue;
      if (stored.size() != 1) return std::nullopt;
      schedule::AxisTree before = of;
      before.steps.resize(of.steps.rend() - step - 1);
      IndexPtr index[2];
      for (const auto& [node, result] : {std::pair(w->x, &index[0]), std::pair(w->y, &index[1])}) {
        std::vector<int64_t> own(of.extents.size(), 0);
        own[node] = 1;
        const std::optional<Position> p = position(before, own, root_of);
        if (!p) return std::nullopt;
        if (p->lane_step != 0) walk.lane_step = std::nullopt;
        *result = p->at;
      }
      const IndexPtr weight = loops::constant(stored[0].coefficient);
      swizzled = add(std::move(swizzled), mul(bit_xor(std::move(index[0]), std::move(index[1])), weight));
    }
  }
  for (size_t root = 0; root < root_of.size(); ++root) {
    if (root_of[root] >= 0) walk.digits[root_of[root]] = std::move(digits[root]);
  }
  Position result = walk.run(0), more = apart.run(0);
  result.at = add(add(std::move(swizzled), std::move(result.at)), std::move(more.at));
  const bool even = result.lane_step.has_value() && more.lane_step.has_value();
  result.cycle.reset();
  result.lane_step = even ? std::optional(*result.lane_step + *more.lane_step) : std::nullopt;
  return result;
}

Position Indexer::at_root(int root) const {
  Walk walk(*this, false);
  walk.digits[root] = {{tree_.extents[root], 1}};
  return walk.run(0);
}

std::vector<Bound> Indexer::bounds(bool folded, std::span<const int> bounded) const {
  std::vector<Bound> bounds;
  std::vector<bool> covered(tree_.extents.size(), false);
  for (int root : bounded) covered[root] = true;
  for (size_t i = 0; i < tree_.steps.size(); ++i) {
    if (const MergeStep* m = std::get_if<MergeStep>(&tree_.steps[i])) covered[m->output] = covered[m->outer];
    // With x in bounds, x ^ y is in bounds exactly where y is.
    if (const SwizzleStep* w = std::get_if<SwizzleStep>(&tree_.steps[i])) covered[w->output] = covered[w->y];
    const SplitStep* s = std::get_if<SplitStep>(&tree_.steps[i]);
    if (s == nullptr || (folded && tree_.reduced[s->input])) continue;
    if (tree_.inserted[s->input] && swizzles_missing(s->input)) continue;
    const int64_t extent = tree_.extents[s->input];
    if (tree_.extents[s->outer] * tree_.extents[s->inner] != extent && !covered[s->input]) {
      Walk walk(*this, false);
      walk.digits[s->input] = {{extent, 1}};
      Bound bound{walk.run(i), extent};
      // i / n < m says the same as i < n * m.
      while (bound.index.lane_step == 0 && is_division(bound.index.at)) {
        bound.bound *= bound.index.at->b->value;
        bound.index.at = bound.index.at->a;
      }
      // a / n + b < m says the same as a + b * n < m * n, which lanes along a follow.
      const auto parts = bound.index.lane_step ? std::nullopt : quotient_of(bound.index.at);
      if (parts && lane_node_ >= 0 && same(parts->first->a, known_[lane_node_])) {
        const auto& [quotient, others] = *parts;
        bound.index = {add(quotient->a, mul(others, quotient->b)), 1};
        bound.bound *= quotient->b->value;
      }
      bounds.push_back(std::move(bound));
      covered[s->input] = true;
    }
    covered[s->outer] = covered[s->input];  // an inner axis can overrun on its own
  }
  return bounds;
}

int64_t multiple_of(const IndexPtr& index) {
  switch (index->kind) {
    case loops::IndexKind::kConst: return index->value;
    case loops::IndexKind::kAdd: return std::gcd(multiple_of(index->a), multiple_of(index->b));
    case loops::IndexKind::kMul: return multiple_of(index->a) * multiple_of(index->b);
    case loops::IndexKind::kMod: return std::gcd(multiple_of(index->a), multiple_of(index->b));
    default: return 1;
  }
}

std::optional<int64_t> largest(const IndexPtr& index, std::span<const int64_t> extents) {
  switch (index->kind) {
    case IndexKind::kConst: return index->value;
    case IndexKind::kVar: return extents[index->value] - 1;
    default: break;
  }
  const std::optional<int64_t> a = largest(index->a, extents), b = largest(index->b, extents);
  if (!a || !b) return std::nullopt;
  const bool by_constant = index->b->kind == loops::IndexKind::kConst;
  switch (index->kind) {
    case IndexKind::kAdd: return *a + *b;
    case IndexKind::kMul: return std::min(*a, *b) < 0 ? std::nullopt : std::optional(*a * *b);
    case IndexKind::kDiv: return by_constant ? std::optional(*a / *b) : std::nullopt;
    case IndexKind::kMod: return by_constant ? std::optional(std::min(*a, *b - 1)) : std::nullopt;
    case IndexKind::kMin: return std::min(*a, *b);
    case IndexKind::kXor: return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(*a, *b) + 1))) - 1;
    default: return std::nullopt;
  }
}

bool same(const IndexPtr& a, const IndexPtr& b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr || a->kind != b->kind || a->value != b->value) return false;
  return same(a->a, b->a) && same(a->b, b->b);
}

}  // namespace jf::graph
