// Column sums whose blocks have whole columns: strips of them that few threads read side by side, in whole lines of
// memory if there are enough, with many threads along the rows. Decided in two places, whether there are parts of rows
// and how a kernel goes along its columns, both from this.
#pragma once

#include <cstdint>

#include "base/target.h"

namespace jf::plan {

// Threads side by side, each with a widest access, threads along the rows, and accesses of a thread that are on their
// way together, blocks of a multiprocessor; 0 threads where strips would be too few, too many or too short.
struct Strips {
  int64_t threads = 0, threads_y = 1, unroll = 1, at_once = 2;
};
Strips strips_of(int64_t rows, int64_t columns, int64_t bytes, const Target& target);

// Whether a sum of so few rows, which strips could be, is quicker so than in parts of the rows that a second kernel
// adds up.
bool strips_beat_parts(int64_t rows, int64_t columns, int64_t bytes, const Target& target);

}  // namespace jf::plan
