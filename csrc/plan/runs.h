// CUDA: rows that are folded whole and also run by run, such as norms whose results are quantized in blocks.
#pragma once

#include "plan/reduction_platforms.h"

namespace jf::plan {

// A block has one row, of which each thread takes vectors of several runs.
CudaReduction along_runs(const RowFacts& facts, const Target& target);

}  // namespace jf::plan
