#include <algorithm>
#include <numeric>
#include <optional>

#include "plan/pointwise_platforms.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using schedule::Parallel;
using schedule::Scheduler;

// A gathered vector costs about this many contiguous ones, and one that is stored so, which no tile mends, as many
// more.
constexpr double kPointwiseGatherCost = 6, kScatterCost = 20;
// Elements so few apart are sorted in registers: each of their vectors costs about one that is contiguous.
constexpr int64_t kMostInterleaved = 4;
constexpr int64_t kCacheLine = 64, kMostTiledLanes = 32;
// Iterations along contiguous memory that are loaded and stored together.
constexpr int64_t kTile = 64, kSmallTile = 16;
// Memory likes tiles that follow each other along the rows that they read, where these are long, and likes least to
// write single lines of as many rows. A core turns 4096 x 4096 f32 in half of the time so, in 0.86 of that with two
// lines of each row, bf16 in 0.91; four are no faster. Lines of which tiles write a part wait for the next rows too
// long.
constexpr int64_t kLongRowBytes = 1024, kPointwiseVectors = 2;

// Whether each vector would fill half of a cache line of a result: two of them side by side are stored as one.
bool stores_halves(const Traffic& traffic, size_t loop) {
  return std::all_of(traffic.accesses.begin(), traffic.accesses.end(), [&](const Access& access) {
    return !access.stores || (access.steps[loop] == 1 && 2 * access.bytes == traffic.widest_lane);
  });
}

// Elements side by side in memory, one way or the other.
bool is_neighbour(int64_t step) { return std::abs(step) == 1; }

// Whether the elements between those that the lanes store are stored, too: by other stores, or by the loop inside.
bool is_interleaved(const Traffic& traffic, const Access& access, size_t loop) {
  const int64_t step = access.steps[loop];
  if (step > kMostInterleaved) return false;
  if (access.steps.back() == 1 && traffic.extents.back() == step) return true;
  return step == std::count_if(traffic.accesses.begin(), traffic.accesses.end(), [&](const Access& other) {
           return other.stores && other.steps == access.steps && std::abs(other.offset - access.offset) < step;
         });
}

// What the lanes of an access cost beyond those of a contiguous one, or of one with a step.
double extra_cost(const Traffic& traffic, const Access& access, size_t loop) {
  const int64_t step = access.steps[loop];
  if (step <= 1 || access.bytes == 0) return 0;
  const double sorted = static_cast<double>(step) - kPointwiseGatherCost;
  if (!access.stores) return step <= kMostInterleaved ? sorted : 0;
  return is_interleaved(traffic, access, loop) ? sorted : kScatterCost;
}

// Rows shorter than a vector as one loop, whose lanes go from row to row: what repeats from row to row or along rows
// goes round in them. Everything else goes on from row to row; nothing where it does not.
std::optional<Traffic> join_short_rows(Traffic traffic, int64_t lanes) {
  const size_t row = traffic.extents.size() - 1, rows = row - 1;
  if (row == 0 || traffic.extents[row] >= lanes) return std::nullopt;
  for (Access& access : traffic.accesses) {
    const bool whole = access.edges.empty() || (access.edges[rows] == 0 && access.edges[row] == 0);
    const int64_t along = access.steps[row], down = access.steps[rows];
    const bool goes_on = down == along * traffic.extents[row], is_read = !access.stores && access.bytes > 0;
    const bool repeats = (along == 1 && down == 0) || (along == 0 && down == 1);
    const bool backwards = is_neighbour(along) && down == -along * traffic.extents[row];  // rows or places backwards
    if (!whole || !(goes_on || (is_read && (repeats || backwards)))) return std::nullopt;
    access.steps[rows] = goes_on ? along : 1;
    access.steps.pop_back();
    if (!access.edges.empty()) access.edges.pop_back();
  }
  traffic.extents[rows] *= traffic.extents[row];
  traffic.collapse[rows] += traffic.collapse[row];
  traffic.extents.pop_back();
  traffic.collapse.pop_back();
  return traffic;
}

}  // namespace

CpuPointwise propose_cpu(const Traffic& given, const Target& target) {
  CpuPointwise p;
  p.collapse = given.collapse;
  if (given.extents.empty()) return p;
  const std::optional<Traffic> joined = join_short_rows(given, most_shuffled_lanes(given, target));
  const Traffic& traffic = joined ? *joined : given;
  p.collapse = traffic.collapse;
  size_t best = traffic.extents.size() - 1;
  const auto cost = [&](size_t loop) {
    double sum = lane_cost(traffic, loop, register_lanes(traffic, loop, target), kPointwiseGatherCost);
    for (const Access& access : traffic.accesses) sum += extra_cost(traffic, access, loop);
    return sum;
  };
  for (size_t loop = best; loop-- > 0;) {
    if (cost(loop) < cost(best)) best = loop;
  }
  p.lane_loop = static_cast<int>(best);
  const int64_t lanes = joined ? most_shuffled_lanes(given, target) : register_lanes(traffic, best, target);
  if (traffic.extents[best] > 1) p.lanes = lanes;
  int64_t line = 1, row_bytes = 0;
  for (const Access& access : traffic.accesses) {
    if (std::abs(access.steps[best]) <= 1 || access.bytes == 0) continue;
    const auto contiguous = std::find_if(access.steps.begin(), access.steps.end(), is_neighbour);
    // Short loops stay in the cache by themselves.
    if (contiguous == access.steps.end() || traffic.extents[contiguous - access.steps.begin()] <= kSmallTile) continue;
    p.tile_loop = static_cast<int>(contiguous - access.steps.begin());
    line = kCacheLine / access.bytes;
    row_bytes = traffic.extents[p.tile_loop] * access.bytes;
  }
  const int64_t extent = traffic.extents[best];
  if (p.tile_loop >= 0) {
    // Tiles come back to a cache line of the result late, so each vector fills whole ones.
    for (const Access& access : traffic.accesses) {
      if (access.steps[best] != 1 || access.bytes == 0) continue;
      p.lanes = std::max(p.lanes, std::min(kCacheLine / access.bytes, kMostTiledLanes));
    }
    p.along_rows = row_bytes >= kLongRowBytes && extent % p.lanes == 0;
    p.tile = p.along_rows ? line : traffic.extents[p.tile_loop] > kTile ? kTile : kSmallTile;
    if (p.along_rows && extent % (kPointwiseVectors * p.lanes) == 0) p.vectors = kPointwiseVectors;
  } else if (stores_halves(traffic, best) && target.vector_bytes == kCacheLine && extent % (2 * lanes) == 0) {
    p.lanes *= 2;
  }
  p.tasks = task_count(traffic);
  return p;
}

void schedule_cpu(Scheduler& scheduler, ir::ValueId reference, const CpuPointwise& p) {
  collapse(scheduler, reference, p.collapse);
  const int outer_loops = loop_rank(scheduler, reference);
  if (outer_loops == 0) return;
  // Inner parts go behind all outer loops: vectors beside each other, the tile, then the lanes.
  const auto move = [&](int axis, int to) {
    std::vector<int> order(loop_rank(scheduler, reference));
    std::iota(order.begin(), order.end(), 0);
    order.erase(order.begin() + axis);
    order.insert(order.begin() + to, axis);
    scheduler.reorder(reference, order);
  };
  const auto split_last = [&](int loop, int64_t extent) {
    scheduler.split(reference, loop, extent);
    move(loop + 1, loop_rank(scheduler, reference) - 1);
  };
  if (p.vectors > 1) split_last(p.lane_loop, p.vectors * p.lanes);
  if (p.tile > 1) split_last(p.tile_loop, p.tile);
  if (p.lanes > 1) {
    split_last(p.vectors > 1 ? outer_loops : p.lane_loop, p.lanes);
    scheduler.parallelize(reference, -1, Parallel::kVector);
  }
  if (p.along_rows) move(p.tile_loop, outer_loops - 1);
  if (p.tasks > 1) make_tasks(scheduler, reference, p.tasks, outer_loops);
}

}  // namespace jf::plan
