// What a pointwise segment reads and writes, and what it costs: the facts that its parameters follow from.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/fusion.h"

namespace jf::plan {

// Memory or a counter (iota) that is indexed along the loops.
struct Access {
  std::vector<int64_t> steps;  // by loop: elements from one iteration to the next; 0 where it repeats
  int64_t bytes;               // of an element; 0 for a counter
};

// Neighbouring axes of the first output that are one loop for every access.
struct Traffic {
  std::vector<int> collapse;     // axes of each loop
  std::vector<int64_t> extents;  // iterations of each loop
  std::vector<Access> accesses;
  double cost_per_element = 0;  // 1 is a pass over 12 bytes: two f32 read, one written
  int64_t widest_lane = 1;      // bytes of the widest type in registers
};

Traffic traffic(const ir::Fusion& segment);

}  // namespace jf::plan
