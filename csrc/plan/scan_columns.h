// Blocks that scan along columns: threads side by side, and threads along the rows that scan together round by round.
#pragma once

#include <cstdint>

#include "base/target.h"
#include "plan/reduction_platforms.h"

namespace jf::plan {

// Sets the threads, lanes and rows of a thread where a kernel scans `rows` of `kept` columns in one pass; whether it
// does. The parameters' lanes are the most that columns allow.
bool in_scanned_columns(const RowFacts& facts, int64_t rows, int64_t kept, CudaReduction& p, const Target& target);

}  // namespace jf::plan
