// Bulk copies: shared copies of inputs whose elements one instruction moves.
#pragma once

#include <cstdint>
#include <vector>

#include "base/target.h"
#include "ir/fusion.h"
#include "loops/kernel.h"
#include "lower/guards.h"
#include "schedule/schedule.h"

namespace jf::lower {

// Throws UserError, naming the value and the call that mends it, where bulk axes or stages cannot be.
void check_bulk(const ir::Fusion& segment, const schedule::Schedule& schedule, const Target& target);

// A bulk copy at one place of the loops that its value is inlined in.
struct BulkCopy {
  const ir::Fusion& fusion;
  const schedule::Domain& domain;
  const ir::Op& op;
  int input = -1;                           // its buffer
  int ring = -1;                            // where the copy goes
  std::vector<loops::IndexPtr> outer = {};  // the index of each loop axis that the value is inlined in
  std::vector<int64_t> storage = {};        // elements from one index to the next, by node of the value's axes
};
struct BulkStatements {
  std::vector<Guarded> fill;  // the copies, then the commit of their stage
  loops::Condition when;      // of the commit; who waits for it does so under the same condition
};
// `next_variable` numbers the loops of the value's own, which stand inside of the statements.
BulkStatements write_bulk(const BulkCopy& copy, int& next_variable);

// Elements of a stage that holds so many: the next one begins at a multiple of 128 bytes.
int64_t stage_size(int64_t elements, DType dtype);

}  // namespace jf::lower
