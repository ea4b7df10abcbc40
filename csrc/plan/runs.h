// Rows that are folded whole and also run by run, such as norms whose results are quantized in blocks; kernels of CUDA.
#pragma once

#include <vector>

#include "plan/clusters.h"
#include "plan/reduction_platforms.h"

namespace jf::plan {

// Whether reductions of these axes fold runs of the rows of a space: a few threads' vectors, of rows that a block
// keeps.
bool are_runs(const Space& rows, const std::vector<bool>& folded);

// Whether a value has all folded axes or none of them, or one for each run all but the last: one with others, say what
// broadcasts a result along one axis of two, shares no loop with the reductions.
bool lies_along_rows(const Place& place, const Cluster& cluster);

// A block has one row, of which each thread takes vectors of several runs.
CudaReduction along_runs(const RowFacts& facts, const Target& target);

}  // namespace jf::plan
