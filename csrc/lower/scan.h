// How a scan runs in its loops: the order of the loops along its axis, where its carry lives, and which threads scan
// together.
//
// One thread by itself goes along the axis in order: at every iteration the carry takes in one register, whose lanes it
// scans where they lie along the axis. Threads that scan together first put the registers of the loops from the
// position of inlining on into an array; one statement then scans elements, threads and lanes at once.
#pragma once

#include <vector>

#include "ir/fusion.h"
#include "lower/loop_tree.h"
#include "schedule/schedule.h"

namespace jf::lower {

bool is_scan(const Item& item);
// Whether the item's value is complete only after its loops from Item::shared on: a fold, or a scan by threads.
bool is_complete_later(const Item& item, const schedule::Schedule& schedule);

struct ScanLoops {
  bool together = false;      // whether threads scan together
  bool lanes = false;         // whether lanes lie along the axis
  int carried = -1;           // position of the outermost loop that carries a value on; -1 for none
  std::vector<int> beside;    // positions inside of it that each have a carry of their own
  int64_t run = 1;            // neighbouring elements of a thread, where threads scan together
  std::vector<int> carrying;  // positions of all loops that carry a value on
};
ScanLoops scan_loops(const LoopTree& tree, const Item& item, const schedule::Schedule& schedule);

// Throws UserError unless the loops of a scan go along its axis in order and its threads can scan together.
void check_scan(const ir::Fusion& segment, ir::ValueId value, const schedule::Domain& domain);
// Throws UserError where threads scan what lies in lanes beside each other, which they cannot do one after the other.
void check_scans_without_lanes(const ir::Fusion& segment, const schedule::Schedule& schedule);

}  // namespace jf::lower
