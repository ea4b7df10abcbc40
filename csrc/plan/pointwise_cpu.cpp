#include <algorithm>

#include "plan/pointwise_platforms.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using schedule::Parallel;
using schedule::Scheduler;

constexpr int64_t kMaxLanes = 16;
// A gathered vector costs about this many contiguous ones.
constexpr double kGatherCost = 6;
// Iterations along contiguous memory that are loaded and stored together.
constexpr int64_t kTile = 64, kSmallTile = 16;
constexpr int64_t kCacheLine = 64, kMostTiledLanes = 32;

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
    p.tile = traffic.extents[p.tile_loop] > kTile ? kTile : kSmallTile;
  }
  // Tiles come back to a cache line of the result late, so each vector fills whole ones.
  for (const Access& access : traffic.accesses) {
    if (p.tile > 1 && access.steps[best] == 1 && access.bytes > 0) {
      p.lanes = std::max(p.lanes, std::min(kCacheLine / access.bytes, kMostTiledLanes));
    }
  }
  p.tasks = task_count(traffic);
  return p;
}

void schedule_cpu(Scheduler& scheduler, ir::ValueId reference, const CpuPointwise& p) {
  collapse(scheduler, reference, p.collapse);
  int outer_loops = loop_rank(scheduler, reference);
  if (outer_loops == 0) return;
  // Inner parts go behind all outer loops: first those of the tile, then the lanes.
  auto move_last = [&](int axis) {
    std::vector<int> order;
    for (int i = 0; i < loop_rank(scheduler, reference); ++i) {
      if (i != axis) order.push_back(i);
    }
    order.push_back(axis);
    scheduler.reorder(reference, order);
  };
  if (p.tile > 1) {
    scheduler.split(reference, p.tile_loop, p.tile);
    move_last(p.tile_loop + 1);
  }
  if (p.lanes > 1) {
    scheduler.split(reference, p.lane_loop, p.lanes);
    move_last(p.lane_loop + 1);
    scheduler.parallelize(reference, -1, Parallel::kVector);
  }
  if (p.tasks > 1) make_tasks(scheduler, reference, p.tasks, outer_loops);
}

}  // namespace jf::plan
