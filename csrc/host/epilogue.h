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
  size_t product;  // numbers of the segments of Plan: the product's, and the one that reads it
  size_t tail;
  std::vector<size_t> operands;  // by member of the functor: the tail's input
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
