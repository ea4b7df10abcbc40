// Where conditions stand: as far out as what they depend on allows, and never around what all threads must reach.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "loops/kernel.h"

namespace jf::lower {

// A statement that has an effect only where the condition holds.
struct Guarded {
  loops::Condition when;
  loops::Stmt stmt;
  bool barrier = false;  // the threads of a block meet in it
};

// Loop variables that differ between the threads of a block.
using ThreadVariables = std::set<int64_t>;

bool same(const loops::Condition& a, const loops::Condition& b);
bool same(const std::vector<loops::Range>& a, const std::vector<loops::Range>& b);
// How far an index moves with a variable; nothing where it does not move evenly.
std::optional<int64_t> step_of(const loops::IndexPtr& index, int64_t variable);
// The statements, put together under what all of them need and what changes with the loop over `variable`, if anything.
std::vector<Guarded> together(std::vector<Guarded> statements, int64_t variable, const ThreadVariables& threads);
// The statements as the body of the loop over `variable`, and the condition under which any of it has an effect: what
// does not depend on the loop.
Guarded enclose(std::vector<Guarded> statements, int64_t variable, const ThreadVariables& threads);
// Ends a serial loop where all that it does is below a variable that its iterations run into.
void end_early(loops::For& loop);
// The statements as the body of a kernel.
loops::Body close(std::vector<Guarded> statements, const ThreadVariables& threads);

}  // namespace jf::lower
