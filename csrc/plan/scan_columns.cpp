#include "plan/scan_columns.h"

#include <algorithm>

#include "base/integers.h"
#include "plan/two_stages.h"

namespace jf::plan {
namespace {

// Of an H200, linear recurrences whose factors are computed in place, and cumsums, microseconds. What threads wait for
// is each other: of many columns small blocks, so that others of a multiprocessor load meanwhile (16 x 16384 bf16, 1024
// rows: 742 in blocks of 64 x 4 with 4 rows of a thread, 1237 in 32 x 8 with 8; 127 x 1023 f32, 513 rows: 210 and 312);
// of few columns large ones, so that there are few rounds (8192 f32, 2048 rows: 115 in 16 x 32, 209 in 32 x 8; 2048,
// 8192 rows: 171 in 8 x 64 with 16 rows, 258 in 8 x 32; 64, 65536 rows: 505 in 8 x 128 with 16 rows, 1279 in 8 x 32).
constexpr int64_t kMostScanLanes = 2, kFewestScanned = 8;
constexpr int64_t kColumnsOfMany = 64, kThreadsOfMany = 256, kRowsOfMany = 4, kManyBlocks = 4;
constexpr int64_t kThreadsOfFew = 512, kRowsOfFew = 8;

}  // namespace

bool in_scanned_columns(const RowFacts& facts, int64_t rows, int64_t kept, CudaReduction& p, const Target& target) {
  if (!facts.traffic.scans || has_parts(facts.segment) || facts.phases(Keep::kNothing).count > 1) return false;
  const int64_t columns = facts.traffic.extents[p.lane_loop];
  const auto blocks = [&](int64_t threads) { return kept / columns * divide_up(columns / p.lanes, threads); };
  p.lanes = std::min(p.lanes, kMostScanLanes);
  p.threads = kWarp;
  p.unroll = kRowsOfFew;
  int64_t threads = kThreadsOfFew;
  if (blocks(kColumnsOfMany) >= kManyBlocks * target.multiprocessors) {
    p.threads = kColumnsOfMany;
    p.unroll = kRowsOfMany;
    threads = kThreadsOfMany;
  } else {
    while (p.lanes > 1 && blocks(kFewestScanned) < target.multiprocessors) p.lanes /= 2;
    while (p.threads / 2 >= columns / p.lanes) p.threads /= 2;
    while (p.threads > kFewestScanned && blocks(p.threads) < target.multiprocessors) p.threads /= 2;
    if (blocks(p.threads) < target.multiprocessors) threads *= 2;
    if (p.lanes == 1) p.unroll *= 2;
  }
  p.threads_y = threads / p.threads;
  while (p.threads_y > 1 && p.threads_y / 2 >= rows) p.threads_y /= 2;
  p.unroll = std::min(p.unroll, divide_up(rows, p.threads_y));
  return true;
}

}  // namespace jf::plan
