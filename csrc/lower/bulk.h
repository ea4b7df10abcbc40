// Bulk copies: shared copies of inputs whose elements one instruction moves.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/target.h"
#include "graph/index.h"
#include "ir/fusion.h"
#include "loops/kernel.h"
#include "lower/guards.h"
#include "schedule/schedule.h"

namespace jf::lower {

// Throws UserError, naming the value and the call that mends it, where bulk axes or stages cannot be.
void check_bulk(const ir::Fusion& segment, const schedule::Schedule& schedule, const Target& target);

// A bulk copy at one place of the loops that its value is inlined in.
struct BulkCopy {
  loops::Kernel& kernel;  // which gets the maps of tiles
  const ir::Fusion& fusion;
  const schedule::Domain& domain;
  ir::ValueId value;                        // which has the bulk axes
  std::vector<loops::IndexPtr> outer = {};  // the index of each loop axis around it
  int buffer = -1;                          // the parameter
  std::vector<int64_t> weights = {};        // of the value's axes there, by node
  int64_t offset = 0;
  int shared = -1;                 // a load: the ring; a store: the buffer
  loops::IndexPtr skew = nullptr;  // a load's, where it has one
  // Where an element is in shared memory.
  std::function<loops::IndexPtr(const graph::Indexer&)> in_shared = {};
};
// The store of a bulk output's elements.
Guarded write_bulk_store(const BulkCopy& copy, int& next_variable);
struct BulkStatements {
  std::vector<Guarded> fill;  // the copies, then the commit of their stage
  loops::Condition when;      // of the commit; who waits for it does so under the same condition
};
// `next_variable` numbers the loops of the value's own, which stand inside of the statements.
BulkStatements write_bulk(const BulkCopy& copy, int& next_variable);

// Whether a load's copies may begin anywhere in global memory: their sizes are no multiple of what the instruction
// moves. In its stage an element is then `skew` further than it would be, as far into 16 bytes as in global memory.
bool has_skew(const schedule::Domain& domain, DType dtype);
// That of copies that begin at an element.
loops::IndexPtr skew_of(const loops::IndexPtr& begin, DType dtype);

// Where a stage may begin, in bytes.
int64_t stage_alignment(const schedule::Domain& domain);
// Elements of a stage that holds so many, so that the next one can begin after it.
int64_t stage_size(int64_t elements, const schedule::Domain& domain, DType dtype);

}  // namespace jf::lower
