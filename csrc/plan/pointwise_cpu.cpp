#include <algorithm>
#include <numeric>

#include "plan/pointwise_platforms.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using schedule::Parallel;
using schedule::Scheduler;

constexpr int64_t kMaxLanes = 16;
// A gathered vector costs about this many contiguous ones.
constexpr double kGatherCost = 6;
constexpr int64_t kCacheLine = 64, kMostTiledLanes = 32;
// Iterations along contiguous memory that are loaded and stored together are those of a cache line, or so many.
constexpr int64_t kSmallTile = 16;
// Tiles follow each other along the rows that they read, as memory likes it, but single lines of as many rows are what
// it likes least to write: a core turns 4096 x 4096 f32 in 0.76 of the time with two of each row, with four in 0.7.
constexpr int64_t kVectors = 4;

// Whether each vector would fill half of a cache line of a result: two of them side by side are stored as one.
bool stores_halves(const Traffic& traffic, size_t loop) {
  return std::all_of(traffic.accesses.begin(), traffic.accesses.end(), [&](const Access& access) {
    return !access.uses.empty() || access.bytes == 0 ||
           (access.steps[loop] == 1 && 2 * access.bytes == traffic.widest_lane);
  });
}

}  // namespace

CpuPointwise propose_cpu(const Traffic& traffic, const Target& target) {
  CpuPointwise p;
  p.collapse = traffic.collapse;
  if (traffic.extents.empty()) return p;
  const int64_t lanes = std::clamp<int64_t>(target.vector_bytes / traffic.widest_lane, 2, kMaxLanes);
  size_t best = traffic.extents.size() - 1;
  for (size_t loop = best; loop-- > 0;) {
    if (lane_cost(traffic, loop, lanes, kGatherCost) < lane_cost(traffic, best, lanes, kGatherCost)) best = loop;
  }
  p.lane_loop = static_cast<int>(best);
  if (traffic.extents[best] > 1) p.lanes = lanes;
  for (const Access& access : traffic.accesses) {
    if (access.steps[best] <= 1 || access.bytes == 0) continue;
    const auto contiguous = std::find(access.steps.begin(), access.steps.end(), 1);
    // Short loops stay in the cache by themselves.
    if (contiguous == access.steps.end() || traffic.extents[contiguous - access.steps.begin()] <= kSmallTile) continue;
    p.tile_loop = static_cast<int>(contiguous - access.steps.begin());
    const int64_t line = kCacheLine / access.bytes;
    p.tile = traffic.extents[p.tile_loop] >= line ? line : kSmallTile;
  }
  // Tiles come back to a cache line of the result late, so each vector fills whole ones.
  for (const Access& access : traffic.accesses) {
    if (p.tile > 1 && access.steps[best] == 1 && access.bytes > 0) {
      p.lanes = std::max(p.lanes, std::min(kCacheLine / access.bytes, kMostTiledLanes));
    }
  }
  if (p.tile == 1 && stores_halves(traffic, best) && target.vector_bytes == kCacheLine &&
      traffic.extents[best] % (2 * lanes) == 0) {
    p.lanes *= 2;
  }
  if (p.tile > 1) {
    const int64_t extent = traffic.extents[best];
    while (p.vectors < kVectors && (extent % p.lanes != 0 || extent % (2 * p.vectors * p.lanes) == 0) &&
           p.vectors * p.lanes < extent) {
      p.vectors *= 2;
    }
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
  if (p.tile > 1) move(p.tile_loop, outer_loops - 1);
  if (p.tasks > 1) make_tasks(scheduler, reference, p.tasks, outer_loops);
}

}  // namespace jf::plan
