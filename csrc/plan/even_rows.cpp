#include "plan/even_rows.h"

#include "base/target.h"

namespace jf::plan {
namespace {

// Threads of a multiprocessor with 128 registers each, and of a row of f32 at least.
constexpr int64_t kThreads = 512, kWideBytes = 4, kWideThreads = 256;
// What a block has of a row, at the most: of one that several blocks can share, and of one that no vectors divide.
constexpr int64_t kColumns = 16 << 10, kSharedBytes = 32 << 10, kBytes = 64 << 10;
constexpr int64_t kLanes = 4;
constexpr int64_t kMultiprocessors = 132;

}  // namespace

int64_t threads_of_even_row(int64_t row, int64_t bytes) {
  const int64_t fewest = bytes < kWideBytes ? 2 * kWarp : kWideThreads;
  for (const int64_t elements : {16, 12}) {
    const int64_t threads = row / elements;
    if (row % (elements * kWarp) == 0 && threads >= fewest && threads <= kThreads) return threads;
  }
  return 0;
}
int64_t blocks_of_even_rows(int64_t threads) {
  const int64_t most = kThreads / threads;
  for (int64_t blocks = most; blocks > 0; --blocks) {
    if (blocks * threads % (4 * kWarp) == 0) return blocks;
  }
  return most;
}

int64_t blocks_of_row(int64_t row, int64_t bytes) {
  for (int64_t blocks = 1; blocks <= kMostBlocksOfCluster; blocks *= 2) {
    const int64_t part = row / blocks;
    if (blocks > 1 && (row % (blocks * kLanes) != 0 || part * bytes % kBulkBytes != 0)) break;
    if (part <= kColumns && part * bytes <= kSharedBytes) return blocks;
  }
  return row <= kColumns && row * bytes <= kBytes ? 1 : 0;
}
// Blocks of a cluster are neighbours, and some neighbourhoods are too small for another cluster.
int64_t runs_at_once(int64_t blocks) { return (blocks > 2 ? kMultiprocessors * 10 / 11 : kMultiprocessors) / blocks; }

}  // namespace jf::plan
