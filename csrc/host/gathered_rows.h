// Which grouped products of a plan have rows that a segment of their own only gathers, `where(i[r] is inside, x[i[r]],
// 0)`: their kernels take the rows from x by number, and the segment computes those numbers instead, or does not run
// where i has them already: then no kernel's text depends on how many rows x has.
//
// The plan is the same on every target: numbers that are computed are where the gathered rows would be.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/target.h"
#include "grouped/cuda/move_rows.h"
#include "host/epilogue.h"
#include "host/facts.h"
#include "plan/plan.h"

namespace jf::host {

struct GatheredRows {
  ir::ValueId from;                            // x, the plan's value
  ir::ValueId number;                          // that of the numbers, or of the gathered rows in whose place they are
  std::optional<plan::Segment> computed = {};  // s32[m], -1 for a row of zeros
};

// A gathering segment that stays, by a kernel whose text does not depend on how many rows there are, if that has it.
struct CopiedRows {
  std::string why;  // a product does not gather them, for people; empty where none could
  std::optional<grouped::RowMove> move = {};
  std::vector<ir::ValueId> reads = {};  // of it: x, the rows' numbers
};

struct GatheringProducts {
  std::map<size_t, GatheredRows> by_product;  // by number of the product's segment
  std::map<size_t, size_t> product_of;        // by number of the gathering segment
  std::map<size_t, CopiedRows> copied;        // likewise
};

GatheringProducts find_gathers(const plan::Plan& plan, const Epilogues& epilogues, const Target& target);

// Whether a program has a product whose rows are gathered by a kernel of their own.
bool copies_rows(const std::string& program, const std::string& target);

// The facts of a product, and of the kernel that computes the numbers of its rows; those of the segments say how they
// are without each other.
KernelFacts gathering(const KernelFacts& product, const GatheredRows& rows, const ir::Fusion& whole);
KernelFacts numbering(const KernelFacts& numbers);

}  // namespace jf::host
