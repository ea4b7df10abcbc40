// Rows of 16-bit elements that few threads share evenly, where a kernel folds them and folds across them. How many runs
// of rows there are and how a kernel goes along them is decided in two places, both from this.
#pragma once

#include <cstdint>

namespace jf::plan {

// Threads of a 16-bit row that is folded beside `columns` folds across rows, so that each has 16 or 12 elements and
// keeps them all in registers as f32; 0 where they cannot share the row evenly. And how many such blocks have room on a
// multiprocessor: equally many warps go to each of its four parts.
int64_t threads_of_even_row(int64_t row, int64_t column_folds);
int64_t blocks_of_even_rows(int64_t threads);

}  // namespace jf::plan
