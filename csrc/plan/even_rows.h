// Rows that a kernel folds and folds across: those that few threads share evenly, and those that several blocks share.
// Whether there is such a kernel, how many runs of rows it has and how it goes along them is decided in three places,
// all from this.
#pragma once

#include <cstdint>

#include "base/target.h"

namespace jf::plan {

// Threads of a row of elements of `bytes` bytes, so that each has 16 or 12 elements and keeps them all in registers as
// f32; 0 where they cannot share the row evenly. And how many such blocks have room on a multiprocessor: equally many
// warps go to each of its four parts.
int64_t threads_of_even_row(int64_t row, int64_t bytes);
int64_t blocks_of_even_rows(int64_t threads);

// Such rows that are short and few: each is one warp's, so that none waits for another, and several rows of a block are
// side by side, so that their sums across leave little. Runs of rows, 0 where rows are longer or many; rows side by
// side; whether runs take rows in turn.
struct RowsOfWarps {
  int64_t runs = 0, side_by_side = 0;
  bool in_turn = true;
};
RowsOfWarps rows_of_warps(int64_t rows, int64_t row, int64_t bytes);

// Blocks that share a row, where they can: each thread has an accumulator for each of its columns, and the rows that
// are read fit the memory that the threads of a block share. 0 where the row is too long for that.
int64_t blocks_of_row(int64_t row, int64_t bytes, bool share_rows);

}  // namespace jf::plan
