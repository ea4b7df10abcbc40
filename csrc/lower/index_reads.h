// Integers of memory that are loop bounds and places: how many elements a component has, and where its rows begin.
#pragma once

#include <set>
#include <vector>

#include "graph/index.h"
#include "ir/fusion.h"
#include "loops/kernel.h"
#include "lower/guards.h"
#include "schedule/schedule.h"

namespace jf::lower {

// One integer that an item of the loop tree needs: an element of an input, brought into [0, high]. It is of the index
// along root axis `axis`.
struct IndexRead {
  int axis;
  ir::ValueId value;
  loops::IndexPtr offset;
  int64_t high;
  loops::Condition exists;  // where the offset is in bounds
};

// The counts of the item's components, where it is computed or stored over ragged axes; nothing elsewhere. `folded`: of
// an item that stores. False in `even` where it differs between lanes.
std::vector<IndexRead> counts_of(const ir::Fusion& fusion, const schedule::Domain& domain, const graph::Indexer& at,
                                 bool folded, bool& even);
// Where the rows of its component begin, for a partition and for a store of what combine made.
std::vector<IndexRead> starts_of(const ir::Fusion& fusion, const schedule::Domain& domain, const graph::Indexer& at,
                                 const ir::Op& op, bool& even);
// Which axis of a partition's operand its ragged axis `number` stands for.
int64_t partitioned_axis(const ir::Op& op, size_t number);

// The reads that are known at one place of the loops. They are made as far out as the loops allow.
class IndexReads {
 public:
  explicit IndexReads(const std::vector<int>& input_number) : input_number_(input_number) {}

  void open_loop(int64_t variable) { open_.insert(variable); }
  void close_loop(int64_t variable) { open_.erase(variable); }
  size_t count() const { return known_.size(); }
  // Makes a read whose loops are all open, if none does yet.
  void offer(const IndexRead& read, int& next_variable, ThreadVariables& threads);
  // The statements, after the reads that were made from number `first` on; those are no longer known.
  std::vector<Guarded> close(size_t first, std::vector<Guarded> statements, const ThreadVariables& threads);
  int variable(const IndexRead& read) const;

 private:
  struct Known {
    IndexRead read;
    int variable;
  };
  bool is_open(const loops::IndexPtr& index) const;

  const std::vector<int>& input_number_;  // by value
  std::set<int64_t> open_;
  std::vector<Known> known_;
};

}  // namespace jf::lower
