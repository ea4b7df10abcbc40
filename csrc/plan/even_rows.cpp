#include "plan/even_rows.h"

#include "base/integers.h"
#include "base/target.h"

namespace jf::plan {
namespace {

// Threads of a multiprocessor with 128 registers each, and of a row of f32 at least.
constexpr int64_t kEvenThreads = 512, kEvenWideBytes = 4, kWideThreads = 256;
// What a block has of a row, at the most: of one that several blocks can share, and of one that no vectors divide.
constexpr int64_t kEvenColumns = 16 << 10, kEvenSharedBytes = 32 << 10, kBytes = 64 << 10;
constexpr int64_t kEvenLanes = 4;
// Rows of warps: elements of a thread in vectors of 8; all rows of a block at once, at most so many, where each
// multiprocessor has one, or some of them in stages. Derivatives of rms and layer norm, bf16 rows of 768, with adding
// the runs: 2048 rows in 128 runs 5.7 and 6.6 us, in runs of one row at a time 11.3 and 13.1; 16384 in 256 runs 22.7
// and 23.7, in 792 25.2 and 26.6.
constexpr int64_t kWideLanes = 8, kMostOfWarp = 24, kAllAtOnce = 16, kSideBySide = 4, kManyEvenRows = 32 << 10;

}  // namespace

int64_t threads_of_even_row(int64_t row, int64_t bytes) {
  const int64_t fewest = bytes < kEvenWideBytes ? 2 * kWarp : kWideThreads;
  for (const int64_t elements : {16, 12}) {
    const int64_t threads = row / elements;
    if (row % (elements * kWarp) == 0 && threads >= fewest && threads <= kEvenThreads) return threads;
  }
  return 0;
}
int64_t blocks_of_even_rows(int64_t threads) {
  const int64_t most = kEvenThreads / threads;
  for (int64_t blocks = most; blocks > 0; --blocks) {
    if (blocks * threads % (4 * kWarp) == 0) return blocks;
  }
  return most;
}

RowsOfWarps rows_of_warps(int64_t rows, int64_t row, int64_t bytes) {
  const int64_t each = row / kWarp;
  if (threads_of_even_row(row, bytes) == 0 || bytes >= kEvenWideBytes || each % kWideLanes != 0 || each > kMostOfWarp) {
    return {};
  }
  if (rows <= kAllAtOnce * kUsualMultiprocessors) {
    const int64_t at_once = divide_up(rows, kUsualMultiprocessors);
    return {divide_up(rows, at_once), at_once};
  }
  if (rows > kManyEvenRows) return {};
  const int64_t of_run = round_up(divide_up(rows, 2 * kUsualMultiprocessors), kSideBySide);
  return {divide_up(rows, of_run), kSideBySide, false};
}

int64_t blocks_of_row(int64_t row, int64_t bytes, bool share_rows) {
  for (int64_t blocks = 1; blocks <= (share_rows ? kMostBlocksOfCluster : 1); blocks *= 2) {
    const int64_t part = row / blocks;
    if (blocks > 1 && (row % (blocks * kEvenLanes) != 0 || part * bytes % kBulkBytes != 0)) break;
    if (part <= kEvenColumns && part * bytes <= kEvenSharedBytes) return blocks;
  }
  return row <= kEvenColumns && row * bytes <= kBytes ? 1 : 0;
}

}  // namespace jf::plan
