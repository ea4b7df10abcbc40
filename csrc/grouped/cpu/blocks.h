// How a dense product is cut into blocks that stay in the level-2 cache.
#pragma once

#include <cstdint>

#include "base/integers.h"
#include "grouped/cpu/kernels.h"

namespace jf::grouped::cpu {

// A task multiplies `rows` x `columns`; it packs rhs in steps of `depth`. Multiples of the kernel's tile and granule.
struct Blocks {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
};

// A dense product of the problem.
struct Extent {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
};

// Whether Kernel::multiply_few_rows computes the product.
inline bool has_few_rows(const Kernel& kernel, const Extent& extent, bool depth_contiguous) {
  return !depth_contiguous && extent.rows <= kernel.most_few_rows;
}

// Tasks of more than 256 columns have at most so many rows and columns.
constexpr int64_t kMostRowsOfLongPieces = 64, kLongestPiece = 2048;

// `share` is the work (rows * columns * depth) that one task should not exceed by much.
Blocks choose_blocks(const Kernel& kernel, const Extent& extent, bool depth_contiguous, double share);

// Upper bounds of a task's scratch memory, for all products that fit into `largest`.
int64_t rhs_block_bytes(const Kernel& kernel, const Extent& largest);
int64_t accumulator_bytes(const Kernel& kernel, const Extent& largest);

}  // namespace jf::grouped::cpu
