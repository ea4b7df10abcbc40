// Where a loop goes over rows, the next row is fetched while this one is worked on: the machine's own prefetching ends
// with each page, and memory has nothing to do while later passes over a row find it in the cache.
#pragma once

#include "loops/kernel.h"

namespace jf::lower {

// Bytes of rows that are fetched: shorter ones the machine fetches by itself, or has under way together; longer ones
// would push out what the passes keep.
inline constexpr int64_t kShortestRow = 1 << 10, kLongestRow = 128 << 10;

// For kernels on the CPU.
void prefetch_rows(loops::Kernel& kernel);

}  // namespace jf::lower
