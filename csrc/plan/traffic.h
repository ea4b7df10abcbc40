// What a segment reads and writes, and what it costs: the facts that its parameters follow from.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/fusion.h"

namespace jf::plan {

// Memory or a counter (iota) that is indexed along the loops.
struct Access {
  std::vector<int64_t> steps;  // by loop: elements from one iteration to the next; 0 where it repeats
  int64_t bytes;               // of an element; 0 for a counter
  int64_t offset = 0;          // elements, of the first iteration
  // By loop: where elements begin and end is a multiple of this; 0 where every iteration has one.
  std::vector<int64_t> edges = {};
  // Of an input: the numbers of the ops and operands that read it so, but for those that read memory alone.
  std::vector<std::pair<size_t, size_t>> uses = {};
  // Of an input: the numbers of slices and paddings, which read memory alone.
  std::vector<size_t> slices = {};
  bool stores = false;
};

// Neighbouring loop axes of the reference that are one loop for every access and every reduction.
struct Traffic {
  std::vector<int> collapse;     // axes of each loop
  std::vector<int64_t> extents;  // iterations of each loop
  std::vector<bool> folded;      // by loop: whether the reductions fold it or scans go along it
  bool scans = false;            // whether values are scanned along the folded loops
  std::vector<bool> across;      // by loop: whether reductions in parts fold it beside others that fold the rows
  std::vector<bool> runs;        // by loop: whether some reductions fold it alone, and others all folded loops
  std::vector<Access> accesses;
  double cost_per_element = 0;  // 1 is a pass over 12 bytes: two f32 read, one written
  int64_t widest_lane = 1;      // bytes of the widest type in registers
  std::vector<bool> in_rows;    // by value: whether it is computed along a folded loop
};

// `reference` must have all axes of the iteration domain, and the parts where reductions are in parts.
Traffic traffic(const ir::Fusion& segment, ir::ValueId reference);

}  // namespace jf::plan
