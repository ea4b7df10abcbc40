// The index graph of a scheduled fusion: which axes of its values have the same index at run time.
//
// An axis is a node of a value's forest (schedule/axes.h): a logical axis or what a transform made. The contract of a
// group is "the same index whenever all indices are in bounds", never "the same extent":
//
//   exact         corresponding logical axes of an op's operand and result, and what equal transforms make of them
//   almost exact  also the same part of the same axes reached on another way, by splits that divide: {8} split to
//                 {4,2}, its 4 split by outer 2, against {8} split by outer 2. A part is named by what it selects, so
//                 an outer axis never meets an inner one and nothing is mapped across a split with a remainder. A
//                 swizzled axis meets only the same swizzle of the same axes.
//   permissive    almost exact, where an axis along which a value repeats counts as the axis that it repeats along
//   loop          loop axes that are one loop, since a value is inlined there
//
// Indices and predicates are not read off this graph but computed from each value's own transforms (graph/index.h), so
// a mapping can never make a predicate disappear. Computed when asked, stored nowhere.
#pragma once

#include <vector>

#include "ir/fusion.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::graph {

enum class Mapping : uint8_t { kExact, kAlmostExact, kPermissive, kLoop };

struct AxisId {
  ir::ValueId value;
  int node;
};

class IndexGraph {
 public:
  // Without `through_inputs`, two reads of one input say nothing of each other: they may be at different places.
  IndexGraph(const ir::Fusion& fusion, const schedule::Schedule& schedule, bool through_inputs = true);

  bool mapped(Mapping mapping, AxisId a, AxisId b) const { return group(mapping, a) == group(mapping, b); }
  // Equal numbers for axes of one group; kLoop has groups of loop axes only.
  int group(Mapping mapping, AxisId axis) const;
  // The axis that a loop of a value runs over.
  AxisId loop_axis(ir::ValueId value, int position) const { return {value, trees_[value].loop[position]}; }

 private:
  std::vector<schedule::AxisTree> trees_;
  std::vector<int> first_;  // by value, the number of its first node
  std::vector<int> exact_, almost_exact_, permissive_, loop_;
};

}  // namespace jf::graph
