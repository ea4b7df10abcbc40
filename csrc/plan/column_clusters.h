// Columns that the blocks of a cluster add up together, so that one kernel does it: each has a share of the rows, and a
// strip of columns that fills a line of memory. Decided in two places, which reductions go in parts and how they go,
// both from this.
#pragma once

#include <cstdint>

#include "base/target.h"

namespace jf::plan {

struct ColumnCluster {
  int64_t blocks = 1;  // that share a strip; 1: no cluster pays
  int64_t threads = 0, threads_y = 0;
};
// Of so many rows, each `columns` elements of `bytes` bytes, that are folded.
ColumnCluster column_cluster(int64_t rows, int64_t columns, int64_t bytes, const Target& target);

}  // namespace jf::plan
