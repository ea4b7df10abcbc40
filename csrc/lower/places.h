// Where the values of a kernel are kept: in registers of their scope, in arrays, in shared memory, in rings of stages
// that bulk copies fill.
#pragma once

#include <vector>

#include "ir/fusion.h"
#include "loops/kernel.h"
#include "lower/bulk.h"
#include "lower/guards.h"
#include "lower/loop_tree.h"
#include "schedule/schedule.h"

namespace jf::lower {

loops::Parallel to_loops(schedule::Parallel parallel);

// What the writer of the statements (lower/write.cpp) starts from. Adds arrays, shared buffers and rings to a kernel
// whose buffers are the fusion's inputs, then its outputs.
class Places {
 protected:
  Places(const ir::Fusion& fusion, const schedule::Schedule& schedule, const LoopTree& tree, loops::Kernel& kernel);

  loops::IndexPtr variable(int loop) const {
    return loop < 0 || tree_.loops[loop].extent == 1 ? loops::constant(0) : loops::variable(loop);
  }

  // How a shared value lies in memory.
  struct Storage {
    std::vector<int64_t> weights;  // by node of its tree
    int64_t elements;
  };
  Storage storage_of(const Item& item) const;
  // Where the element of a shared value is that has the index of the user's iteration; `root_of`: for each root axis of
  // the value, the user's that has its index.
  graph::Position in_shared(ir::ValueId id, const graph::Indexer& user, const std::vector<int>& root_of) const;
  // Of the value that an op reads, for in_shared.
  std::vector<int> roots_read(const ir::Op& op, size_t operand) const;
  // Whether a node computes a shared value or reads it from memory: not from the register of its own iteration.
  bool touches(const Node& node, ir::ValueId shared, bool reads) const;
  // Whether a node both computes and reads some shared value.
  bool shares_inside(const Node& node) const;

  // Whether the threads surely meet in the statements; after the last one that reads shared memory.
  bool meet_in(const std::vector<Guarded>& statements) const;
  bool meet_after_reads(const std::vector<Guarded>& statements) const;

  // Whether what is computed in all loops of the producer is there for the user.
  static bool in_scope(const Item& producer, const Item& user);
  std::vector<bool> reduced_loops(const Item& item) const;
  // The element of a kept value that belongs to an iteration of `user`. Where the user has other loops, the value is
  // the same along its own, and its first element will do.
  loops::IndexPtr element(const Item& kept, const Item& user) const;
  loops::IndexPtr element(const Item& kept, const Item& user, const std::vector<int>& positions) const;
  // Positions of the loops that an array has an element for each iteration of.
  std::vector<int> kept_positions(const Item& item) const;
  // How many loops around the place where an array lives.
  static size_t home(const Item& item);
  static size_t loops_before(const Item& item, int position);

  // Whether bulk copies load the item to shared memory; whether they store it, an output, from there.
  bool is_bulk(const Item& item) const {
    const schedule::Domain& domain = schedule_.domains[item.value];
    return item.op != nullptr && schedule::is_bulk(domain) && domain.memory == schedule::Memory::kShared;
  }
  bool is_bulk_store(const Item& item) const {
    return schedule::is_bulk(schedule_.domains[item.value]) && item_of_[item.value] >= 0 &&
           !is_bulk(tree_.items[item_of_[item.value]]);
  }
  // How much further in its stage an item's elements are; null where it has no skew. Where the innermost loop that it
  // is inlined in has the given index, if any.
  loops::IndexPtr skew(const Item& item, const loops::IndexPtr& innermost) const;
  Guarded bulk_store(const Item& item);
  // Whether a node, inside of `depth` loops, all those that it shares with its consumers, computes a shared value that
  // bulk copies store, and comes back to it.
  bool overwrites_stored(const Node& node, size_t depth) const;
  // Whether the copies of a bulk item run ahead of the loop; of the innermost one that it is inlined in.
  bool is_circular(const Item& item, int loop) const;
  bool is_circular(const Item& item) const;
  // The copies of a bulk item where it stands; those for the first iterations of its loop, before it; those for a later
  // iteration of the loop, in each one; and the wait before they are read.
  std::vector<Guarded> fill(const Item& item);
  std::vector<Guarded> fill_first(const Item& item);
  std::vector<Guarded> fill_ahead(const Item& item);
  Guarded await(ir::ValueId id);

  const ir::Fusion& fusion_;
  const schedule::Schedule& schedule_;
  const LoopTree& tree_;
  loops::Kernel& kernel_;
  int next_variable_;              // above those of the tree's loops
  std::vector<int> item_of_;       // by value, -1 for an input
  std::vector<int> input_number_;  // by value, -1 for what is no input
  std::vector<int> array_of_;      // by value, -1 for what lives in a register of its scope
  std::vector<int> carry_of_;      // by value, -1 for what is no scan that carries a value on
  std::vector<int> factors_of_;    // by value, -1 for what is no linear recurrence by threads
  std::vector<int> shared_of_;     // by value: the buffer of a shared value, -1 for others
  std::vector<int> ring_of_;       // by value: the ring that bulk copies of it fill, -1 for others
  ThreadVariables threads_;

 private:
  void make_arrays();
  void make_ring(const Item& item);
  bool meets(const loops::Combine& combine) const;
  bool reads_shared(const loops::Stmt& statement) const;
  BulkStatements bulk(const Item& item, const loops::IndexPtr& innermost);
};

}  // namespace jf::lower
