#include "grouped/cpu/blocks.h"

#include <algorithm>

namespace jf::grouped::cpu {
namespace {

// Of a piece of a line of sums, in multiply_few_rows: those of all rows stay in the first-level cache, or nearly.
int64_t few_rows_bytes(int64_t rows) { return rows <= 4 ? 8192 : 2048; }

int64_t round_down(int64_t value, int64_t multiple) { return std::max(multiple, value / multiple * multiple); }

}  // namespace

Blocks choose_blocks(const Kernel& kernel, const Extent& extent, bool depth_contiguous, double share) {
  constexpr int64_t kFewRows = 64;
  constexpr int64_t kStreamBytes = 4096;
  const int64_t tile = kernel.tile_columns;
  Blocks blocks;
  if (has_few_rows(kernel, extent, depth_contiguous)) {
    const int64_t columns = few_rows_bytes(extent.rows) / kernel.accumulator_bytes;
    blocks = {kernel.tile_rows, round_up(std::min(columns, extent.columns), tile), extent.depth};
  } else {
    blocks.columns = 256;
    if (extent.rows <= kFewRows) {
      // Reading rhs is the work: long pieces of its lines stream best, each packed once for all rows.
      const int64_t sums = kernel.accumulator_bytes * round_up(extent.rows, kernel.tile_rows);  // bytes of a column
      const int64_t most = round_down(kernel.most_sum_bytes / sums, tile);
      blocks.columns = depth_contiguous ? 128 : std::min(kStreamBytes / kernel.packed_bytes, most);
    }
    blocks.columns = round_up(std::min(blocks.columns, extent.columns), tile);
    const int64_t depth = round_up(std::max<int64_t>(extent.depth, 1), kernel.depth_granule);
    const int64_t granule = 32;  // a multiple of every depth granule
    const int64_t most_depth = kernel.rhs_bytes / (blocks.columns * kernel.packed_bytes);
    blocks.depth = std::min(depth, round_down(most_depth, granule));

    blocks.rows = round_up(extent.rows, kernel.tile_rows);
    if (blocks.depth < depth) {
      const int64_t most = kernel.most_sum_bytes / (kernel.accumulator_bytes * blocks.columns);
      blocks.rows = std::min(blocks.rows, round_down(most, kernel.tile_rows));
    }
  }
  // Smaller tasks when there are many workers; below four tiles the packing of rhs would show.
  const auto work = [&] { return static_cast<double>(blocks.rows) * blocks.columns * extent.depth; };
  while (work() > share && blocks.rows > 4 * kernel.tile_rows) {
    blocks.rows = round_up(blocks.rows / 2, kernel.tile_rows);
  }
  while (work() > share && blocks.columns > 4 * tile) blocks.columns = round_up(blocks.columns / 2, tile);
  return blocks;
}

int64_t rhs_block_bytes(const Kernel& kernel, const Extent& largest) {
  const int64_t whole = round_up(std::max<int64_t>(largest.columns, 1), kernel.tile_columns) *
                        round_up(std::max<int64_t>(largest.depth, 1), kernel.depth_granule);
  return std::min(kernel.rhs_bytes, whole * kernel.packed_bytes);
}

int64_t accumulator_bytes(const Kernel& kernel, const Extent& largest) {
  const int64_t whole = round_up(std::max<int64_t>(largest.rows, 1), kernel.tile_rows) *
                        round_up(std::max<int64_t>(largest.columns, 1), kernel.tile_columns);
  return std::min(kernel.most_sum_bytes, whole * kernel.accumulator_bytes);
}

}  // namespace jf::grouped::cpu
