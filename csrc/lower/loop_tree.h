// Which loops a scheduled fusion becomes, and in which of them each value is computed and each output is stored.
#pragma once

#include <vector>

#include "ir/fusion.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::lower {

// One thing to do at every iteration of some loops: compute a value, or store an output.
struct Item {
  const ir::Op* op;  // nullptr: a store
  ir::ValueId value;
  size_t output;  // of a store: its number among the fusion's outputs
  // By position in the value's domain: the loop, or -1 where nothing changes along it, so that once is enough, and
  // where a bulk copy goes along it.
  std::vector<int> loops;
  int shared = 0;  // outer positions that a value shares with all its consumers
};

struct Loop {
  int64_t extent;
  schedule::Parallel parallel;
  int direction = 0;  // 1 and -1 where a scan needs its iterations in order, from the first or from the last one on
};

// An item, or a loop around nodes.
struct Node {
  int item = -1, loop = -1;
  std::vector<Node> body;
};

struct LoopTree {
  std::vector<Item> items;
  std::vector<Loop> loops;
  std::vector<Node> body;  // in an order in which everything is there when it is read
};

// Loops that no inlined value ties together become one where they are equal and no iteration waits for another one.
// Throws UserError where inlined values would need each other's loops to end first.
LoopTree make_loop_tree(const ir::Fusion& fusion, const schedule::Schedule& schedule);

// The most iterations of any loop that runs on `parallel`; 1 where none does.
int64_t extent_of(const LoopTree& tree, schedule::Parallel parallel);
// The loops of an item that run, outermost first.
std::vector<int> path(const Item& item);
bool is_fold(const Item& item);

}  // namespace jf::lower
