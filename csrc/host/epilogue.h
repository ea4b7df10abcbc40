// Which pointwise segments of a plan become part of the kernel of the grouped product that they read.
//
// The plan is the same on every target, and so is the memory between segments: a kernel that takes an epilogue stores
// its result where the plan puts that of the second segment, and the product is never stored.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/target.h"
#include "grouped/cuda/grouped_cuda.h"
#include "host/tile_tail.h"
#include "plan/plan.h"

namespace jf::host {

struct Epilogue {
  size_t product;                  // number of its segment of Plan
  std::vector<size_t> tails;       // those of the segments that end its kernel, which runs in place of the last of them
  std::vector<ir::ValueId> reads;  // by member of the functor: the plan's value
  std::vector<ir::ValueId> results;  // the first takes the place of the product's; the product, if it is stored, too
  std::optional<ir::ValueId> sum;    // what is added up along the columns: partial sums are where the product was
  grouped::RowEpilogue functor;
  std::optional<TileTail> tile = {};  // instead, on the CPU
};

struct Epilogues {
  std::vector<Epilogue> all;
  std::set<size_t> unread;                // segments whose values nothing reads any more
  std::map<size_t, std::string> why_not;  // by product's segment that a pointwise one reads, for people
};

Epilogues find_epilogues(const plan::Plan& plan, const Target& target);

}  // namespace jf::host
