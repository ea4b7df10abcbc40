#include "grouped/cuda/hopper_split.h"

#include <algorithm>

#include "base/integers.h"

namespace jf::grouped {
namespace {

constexpr int64_t kSplitColumns = 128;  // of a tile
constexpr int64_t kRowBytes = 128;      // of a stage
// Of a k of so few stages a launch takes as long, and a kernel that splits nothing compiles sooner: 1, 2, 4 and 8
// rows in groups of their own, 2048 x 1536, took 20.0, 20.8, 21.9 and 23.6 us, by 2 20.4, 21.1, 22.5 and 24.9 (H200,
// whole calls).
constexpr int64_t kShort = 32;

int64_t stages(const Problem& p) { return divide_up(p.k * size_of(p.lhs), kRowBytes); }

// Groups cannot have rows all at once where rows are fewer.
int64_t tiles(const Problem& p, int64_t n) {
  const int64_t groups = std::max<int64_t>(std::min(p.groups, p.m), 1);
  return groups * divide_up(divide_up(p.m, groups), int64_t{kSplitRows}) * divide_up(n, kSplitColumns);
}

// Cycles of a product whose blocks wait for weights (H200):
//   stage   rhs and 64 rows of lhs from L2 by one multiprocessor, (128 + 64) * 128 bytes / 46 = 534, or rhs from memory
//           by all that run, blocks * 128 * 128 / 2500: 210 of 32 blocks, 786 of 120
//   round   stages / split of them, 1500 to fill the ring and to store, 1200 for sums to leave, be there and be read
// A group of n = 2048, k = 4096 (16 tiles, 64 stages): 35.7 thousand; by 2 18.3, by 4 9.7 + 1.5 = 11.2, by 8, of which
// 15 clusters run at once, two rounds of 9.0.
double cycles(const Problem& p, int64_t n, int split, const Target& target) {
  constexpr double kBytesFromL2 = 46, kBytesFromMemory = 2500, kTileCycles = 1500, kJoinCycles = 1200;
  constexpr double kRhs = kSplitColumns * kRowBytes, kLhs = kSplitRows * kRowBytes;
  const int64_t at_once = clusters_at_once(split, target.multiprocessors);
  const auto blocks = static_cast<double>(std::min(tiles(p, n), at_once) * split);
  const double stage = std::max((kRhs + kLhs) / kBytesFromL2, blocks * kRhs / kBytesFromMemory);
  const auto rounds = static_cast<double>(divide_up(tiles(p, n), at_once));
  const auto longest = static_cast<double>(divide_up(stages(p), int64_t{split}));
  return rounds * (longest * stage + kTileCycles + (split > 1 ? kJoinCycles : 0));
}

}  // namespace

bool can_split(const Problem& p, int split) {
  return (split == 2 || split == 4 || split == kMostBlocksOfCluster) && p.scales != Scales::kBlocks &&
         p.lhs_rows == 0 && stages(p) >= split;
}

bool may_split(const Problem& p) {
  return p.mode == Mode::kRows && p.quantizes == OutputFormat::kNone && stages(p) > kShort &&
         can_split(p, static_cast<int>(kMostBlocksOfCluster));
}

std::vector<int> splits(const Problem& p) {
  constexpr int64_t kLeastStages = 4;
  std::vector<int> result;
  if (p.m > kSplitRows * p.groups) return result;
  for (int split = 2; split <= kMostBlocksOfCluster; split *= 2) {
    if (can_split(p, split) && stages(p) >= kLeastStages * split) result.push_back(split);
  }
  return result;
}

int choose_split(const Problem& p, int64_t n, const Target& target) {
  int best = 1;
  if (!may_split(p) || tiles(p, n) >= target.multiprocessors) return best;
  for (const int split : splits(p)) {
    if (cycles(p, n, split, target) < cycles(p, n, best, target)) best = split;
  }
  return best;
}

}  // namespace jf::grouped
