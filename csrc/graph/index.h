// The one indexer: where a value stands in memory, as arithmetic on loop indices; and the one predicate builder.
//
// Both follow the value's own transforms from its logical axes to its loops. A linear position (a sum of axis index
// times weight) stays linear wherever it can: a split of an axis is affine, and a merge of two axes whose weights
// continue each other is one axis again, so that a flat loop over contiguous memory is its own address. Division and
// remainder appear only where a loop runs across axes that do not continue each other.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "loops/kernel.h"
#include "schedule/axes.h"

namespace jf::graph {

// The variable of a Vector statement: it runs over `base` .. base + width - 1.
struct LaneVariable {
  loops::IndexPtr variable;
  loops::IndexPtr base;
};

struct Position {
  loops::IndexPtr at;                      // of lane 0
  std::optional<int64_t> lane_step;        // from each lane to the next; nothing when lanes are not evenly spaced
  std::optional<loops::Cycle> cycle = {};  // of such lanes that go round
};

// `index` must be below `bound`.
struct Bound {
  Position index;
  int64_t bound;
};

class Indexer {
 public:
  // `loops` holds the index of every loop axis; the one of a vector axis is ignored.
  Indexer(const schedule::Domain& domain, std::vector<loops::IndexPtr> loops);

  // What a Vector statement of this domain runs over, at lane 0: the axis that the vector axis was split from.
  loops::IndexPtr lane_base() const;
  // Positions use `lane.variable` where they would repeat its base. A domain with another base does without.
  void use_lane(const LaneVariable& lane);

  // The sum of weights[i] * (index of logical axis i).
  Position position(std::span<const int64_t> weights) const;
  // The sum of weights[n] * (index of axis n) over the axes of another tree, whose root axis r has the index of this
  // one's root_of[r] (-1: always 0). Nothing where an axis is cut unevenly.
  std::optional<Position> position(const schedule::AxisTree& of, std::span<const int64_t> weights,
                                   std::span<const int> root_of) const;
  // What keeps every index in bounds: one bound for each split with a remainder that no bound further up implies. Along
  // an inserted axis loops may be missing, whose index is 0 then: no bound there where a swizzle makes that not the
  // least. `folded`: for the value once it is folded, so that what is reduced counts no more. `bounded`: root axes of
  // which the caller sees to that itself.
  std::vector<Bound> bounds(bool folded = false, std::span<const int> bounded = {}) const;
  // The index of a root axis, also where it is out of bounds.
  Position at_root(int root) const;

 private:
  struct Digit;
  using Digits = std::vector<Digit>;
  struct Walk;

  loops::IndexPtr index(int node) const;
  std::vector<int> same_parts(const schedule::AxisTree& of, std::span<const int> root_of) const;
  bool reaches_lane(int node) const;
  bool misses_loops(int node) const;
  bool swizzles_missing(int node) const;

  schedule::AxisTree tree_;
  std::vector<int> consumer_;           // by node: the step that takes it, -1 for none
  std::vector<loops::IndexPtr> known_;  // by node: loops, dropped axes and the lane axis
  int vector_node_ = -1;                // the vector axis
  int lane_node_ = -1;                  // it or what it was split from: its consecutive elements are lanes
  int64_t width_ = 1;
};

// The largest number known to divide an index; 0 for the index 0.
int64_t multiple_of(const loops::IndexPtr& index);
// The largest value of an index whose variables are below `extents`; nothing where that is not easily told.
std::optional<int64_t> largest(const loops::IndexPtr& index, std::span<const int64_t> extents);
// Whether two indices are the same arithmetic.
bool same(const loops::IndexPtr& a, const loops::IndexPtr& b);

}  // namespace jf::graph
