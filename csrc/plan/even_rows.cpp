#include "plan/even_rows.h"

#include "base/target.h"

namespace jf::plan {
namespace {

// Threads of a multiprocessor with 128 registers each; elements of a row that is one warp's.
constexpr int64_t kThreads = 512, kRowOfWarp = 1024;

}  // namespace

int64_t threads_of_even_row(int64_t row, int64_t column_folds) {
  // Rows of one warp wait for nobody, and one fold across leaves them the registers.
  if (row <= kRowOfWarp && column_folds < 2) return 0;
  for (const int64_t elements : {16, 12}) {
    const int64_t threads = row / elements;
    if (row % (elements * kWarp) == 0 && threads >= 2 * kWarp && threads <= kThreads) return threads;
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

}  // namespace jf::plan
