#include "plan/runs.h"

#include <algorithm>
#include <limits>

#include "base/integers.h"
#include "base/lists.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

constexpr int64_t kShortestRun = 16, kLongestRun = 256, kShortestRowOfRuns = 512, kLongestRowOfRuns = 16 << 10;
// Vectors of a run that are one thread's, and of all its runs together: folds of runs and of rows are arithmetic, of
// which few threads do little twice. RMS norm of bf16 rows, quantized, H200, us:
//   32768 x 7168   nvfp4      64 threads of 16 vectors 208, 128 of 8 222, 224 of 4 238
//                  mxfp8      64 of 16 177, two of them to a run; 128 of 8 207, one to a run 196
//                  fp8_block  64 of 16 174, 8 to a run; 128 of 8 204, 4 to a run 188
//   16384 x 16384  mxfp8      128 of 16 202, two to a run; one to a run 215; 256 of 8 229, one to a run 272
//   65536 x 2048   nvfp4      32 of 8 127, 64 of 4 134
constexpr int64_t kVectorsOfRun = 2, kMostVectors = 16, kFewestVectors = 2;
// Threads of a multiprocessor that few rows are shared out to, at least.
constexpr int64_t kEnoughThreads = 512;
// What a vector more or less for each thread counts against busy threads.
constexpr double kOfVector = 0.05;
// Registers of a thread for what it keeps of a row.
constexpr int64_t kKeptOfRuns = 64 * 4;

}  // namespace

bool are_runs(const Space& rows, const std::vector<bool>& folded) {
  if (std::count(folded.begin(), folded.end(), true) != 1 || !folded.back() || !rows.folded.back()) return false;
  int64_t row = 1;
  for (size_t a = 0; a < rows.extents.size(); ++a) {
    if (rows.folded[a]) row *= rows.extents[a];
  }
  const int64_t run = rows.extents.back();
  return is_power_of_two(run) && run >= kShortestRun && run <= kLongestRun && row > run && row >= kShortestRowOfRuns &&
         row <= kLongestRowOfRuns;
}

bool lies_along_rows(const Place& place, const Cluster& cluster) {
  const Space& space = cluster.space;
  const auto has = std::count_if(place.begin(), place.end(), [&](int axis) { return axis >= 0 && space.folded[axis]; });
  const auto all = std::count(space.folded.begin(), space.folded.end(), true);
  const bool of_runs = cluster.runs && !contains(place, static_cast<int>(space.extents.size()) - 1);
  return has == 0 || has == all || (of_runs && has == all - 1);
}

CudaReduction along_runs(const RowFacts& facts, const Target& target) {
  const Traffic& traffic = facts.traffic;
  CudaReduction p;
  p.along = ThreadsAlong::kRuns;
  int64_t rows = 1, runs = 1;  // of a row
  for (size_t loop = 0; loop < traffic.extents.size(); ++loop) {
    if (traffic.runs[loop]) {
      p.lane_loop = static_cast<int>(loop);
    } else if (traffic.folded[loop]) {
      runs *= traffic.extents[loop];
    } else {
      rows *= traffic.extents[loop];
    }
  }
  const auto lane_loop = static_cast<size_t>(p.lane_loop);
  p.lanes = coalesced_lanes(traffic, lane_loop, vector_lanes(traffic, lane_loop));
  const int64_t vectors = divide_up(traffic.extents[lane_loop], p.lanes);
  p.threads = std::min(kWarp, divide_up(vectors, kVectorsOfRun));
  while (!is_power_of_two(p.threads)) ++p.threads;
  const int64_t each = divide_up(vectors, p.threads), whole_warps = kWarp / p.threads;
  const Phases phases = facts.phases(Keep::kRows);
  const int64_t kept = kept_in_pairs(phases) ? phases.kept_bytes / 2 : phases.kept_bytes;  // of an element
  const auto fits = [&](int64_t count) { return count * each * p.lanes * kept <= kKeptOfRuns; };
  const int64_t all = rows * runs * vectors, enough = kEnoughThreads * target.multiprocessors;
  const int64_t wanted = std::clamp(all / enough, kFewestVectors, kMostVectors);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  double best = kNone;
  for (int64_t count = 1; best == kNone || count * each <= kMostVectors; ++count) {
    const int64_t threads_y = round_up(divide_up(runs, count), whole_warps);
    if (threads_y * p.threads > target.max_threads_per_block || (best > kNone && !fits(count))) continue;
    const double busy = static_cast<double>(runs) / static_cast<double>(threads_y * count);
    const double score = busy - kOfVector * static_cast<double>(std::abs(count * each - wanted));
    if (score <= best) continue;
    best = score;
    p.threads_y = threads_y;
    p.unroll = count;
  }
  if (kept > 0 && fits(p.unroll)) p.keep = Keep::kRows;
  return p;
}

}  // namespace jf::plan
