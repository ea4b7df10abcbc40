// Which grouped products of a plan have rows that a segment of their own only gathers, `where(i[r] is inside, x[i[r]],
// 0)`: their kernels take the rows from x by number, and the segment computes those numbers instead.
//
// The plan is the same on every target: the numbers are where the gathered rows would be.
#pragma once

#include <map>
#include <string>

#include "base/target.h"
#include "host/epilogue.h"
#include "host/facts.h"
#include "plan/plan.h"

namespace jf::host {

struct GatheredRows {
  ir::ValueId from;       // x, the plan's value
  plan::Segment numbers;  // s32[m], -1 for a row of zeros; its output takes the place of the gathered rows
};

struct GatheringProducts {
  std::map<size_t, GatheredRows> by_product;  // by number of the product's segment
  std::map<size_t, size_t> product_of;        // by number of the gathering segment
  std::map<size_t, std::string> why_not;      // by number of a gathering segment that stays, for people
};

GatheringProducts find_gathers(const plan::Plan& plan, const Epilogues& epilogues, const Target& target);

// Whether a program has a product whose rows are gathered by a kernel of their own.
bool copies_rows(const std::string& program, const std::string& target);

// The facts of a product, and of the kernel that computes the numbers of its rows; those of the segments say how they
// are without each other.
KernelFacts gathering(const KernelFacts& product, const GatheredRows& rows, const ir::Fusion& whole);
KernelFacts numbering(const KernelFacts& numbers);

}  // namespace jf::host
