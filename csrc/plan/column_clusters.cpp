#include "plan/column_clusters.h"

#include "plan/even_rows.h"

namespace jf::plan {
namespace {

// Bytes of a line, and of the widest access.
constexpr int64_t kLineBytes = 128, kVectorBytes = 16;
// Blocks of a cluster, the more first. H200, bf16, against two kernels: 2048 x 768 in 8 blocks for each 64 columns 3.5
// us instead of 3.8, 2048 x 2048 4.9 instead of 5.2, 2048 x 4096 6.8 instead of 7.1; 2048 x 8192 in 4 10.6 instead of
// 11.0, 16384 x 2048 in 8 18.6 instead of 19.0.
constexpr int64_t kMost = 8, kFewest = 4;
// So many blocks are enough; fewer are where so few bytes take less than what two kernels wait for, in larger blocks.
constexpr int64_t kEnoughBlocks = 256, kFewestBlocks = 96, kFewBytes = 4 << 20;
// Fewer rows are sums of parts, which the caches still hold: one block adds them sooner.
constexpr int64_t kFewestRows = 2048;
constexpr int64_t kThreads = 256, kManyThreads = 512;

}  // namespace

ColumnCluster column_cluster(int64_t rows, int64_t columns, int64_t bytes, const Target& target) {
  const int64_t strip = kLineBytes / bytes;
  if (!shares_rows(target) || columns % strip != 0 || rows < kFewestRows) return {};
  const int64_t strips = columns / strip;
  for (int64_t blocks = kMost; blocks >= kFewest; blocks /= 2) {
    const bool enough = strips * blocks >= kEnoughBlocks;
    if (!enough && (strips * blocks < kFewestBlocks || rows * columns * bytes > kFewBytes)) break;
    if (blocks > kFewest && strips * (blocks / 2) >= 2 * kEnoughBlocks) continue;
    const int64_t threads = kLineBytes / kVectorBytes, threads_y = (enough ? kThreads : kManyThreads) / threads;
    if (rows < blocks * threads_y) break;
    return {blocks, threads, threads_y};
  }
  return {};
}

}  // namespace jf::plan
