// Rows that a kernel folds and folds across: those that few threads share evenly, and those that several blocks share.
// Whether there is such a kernel, how many runs of rows it has and how it goes along them is decided in three places,
// all from this.
#pragma once

#include <cstdint>

namespace jf::plan {

// Threads of a row of elements of `bytes` bytes, so that each has 16 or 12 elements and keeps them all in registers as
// f32; 0 where they cannot share the row evenly. And how many such blocks have room on a multiprocessor: equally many
// warps go to each of its four parts.
int64_t threads_of_even_row(int64_t row, int64_t bytes);
int64_t blocks_of_even_rows(int64_t threads);

// Blocks that share a row: each thread has an accumulator for each of its columns, and the rows that are read fit the
// memory that the threads of a block share. 0 where the row is too long for that. And how many runs of such rows, each
// of so many blocks, go on at once.
int64_t blocks_of_row(int64_t row, int64_t bytes);
int64_t runs_at_once(int64_t blocks);

}  // namespace jf::plan
