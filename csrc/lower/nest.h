// The loops around the computation: one for each loop axis of the outputs, with the bounds that splits with a remainder
// need.
#pragma once

#include <optional>
#include <vector>

#include "graph/index.h"
#include "loops/kernel.h"
#include "schedule/schedule.h"

namespace jf::lower {

struct Nest {
  std::vector<schedule::LoopAxis> axes;  // loop i has variable i
  std::vector<loops::IndexPtr> indices;  // constant 0 for a loop of one iteration
  std::optional<graph::LaneVariable> lane;
  std::vector<std::pair<loops::IndexPtr, int64_t>> below;  // index, bound: the same for all lanes
  std::optional<int64_t> lane_limit;                       // of lane.variable; nothing when lanes always exist
};

// `lanes`: whether the vector axis runs in lanes or as a serial loop. Nothing when a bound does not follow lanes
// evenly.
std::optional<Nest> make_nest(const schedule::Domain& domain, bool lanes);
// The nest's loops around a body. Bounds stand as far out as the loops they depend on allow.
loops::Body wrap(const Nest& nest, loops::Body body);

// The indexer of a value inside a nest.
graph::Indexer indexer_in(const Nest& nest, schedule::Domain domain);

}  // namespace jf::lower
