// How many blocks of a cluster each sum a stretch of k of one tile of HopperRows: where tiles are fewer than
// multiprocessors, of which each reads no more than its share of memory's bandwidth thrice over.
#pragma once

#include <cstdint>
#include <vector>

#include "base/target.h"
#include "grouped/problem.h"

namespace jf::grouped {

constexpr int kSplitRows = 64;  // of their tiles

// Whether a kernel has the split: 2, 4 or 8, and a stage for each block.
bool can_split(const Problem& problem, int split);

// Whether k is so long that some numbers of rows split it. One kernel then serves all splits, 1 among them.
bool may_split(const Problem& problem);

// Those worth measuring for the problem.
std::vector<int> splits(const Problem& problem);

// By an analytic model, for `n` columns of the product; 1: none. Sizes of groups are not known: those of a capacity
// that is spread evenly are assumed.
int choose_split(const Problem& problem, int64_t n, const Target& target);

}  // namespace jf::grouped
