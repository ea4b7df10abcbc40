#include <algorithm>

#include "plan/pointwise_platforms.h"

namespace jf::plan {
namespace {

using schedule::Parallel;
using schedule::Scheduler;

constexpr int64_t kMaxLanes = 16;
// Cost of a task, in elements of cost 1: about 150 us, below which waking another thread gains nothing.
constexpr double kTaskCost = 256 << 10;
// A few for each core of a large machine, so that uneven ones balance.
constexpr int64_t kMaxTasks = 64;
// A gathered vector costs about this many contiguous ones, a repeated element a fraction of one.
constexpr double kGatherCost = 6, kSplatCost = 0.25;
// Iterations that use a cache line before it leaves the first-level cache.
constexpr int64_t kTile = 16;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Machine work per element when `loop` runs in lanes.
double lane_cost(const Traffic& traffic, size_t loop, int64_t lanes) {
  double cost = traffic.cost_per_element;
  for (const Access& access : traffic.accesses) {
    const int64_t step = access.steps[loop];
    cost += step == 0 ? kSplatCost : step == 1 || access.bytes == 0 ? 1 : kGatherCost;
  }
  const int64_t extent = traffic.extents[loop];
  const double used = static_cast<double>(extent) / static_cast<double>(divide_up(extent, lanes) * lanes);
  return cost / used;
}

int loop_extent_rank(const Scheduler& scheduler, ir::ValueId value) {
  return static_cast<int>(scheduler.schedule().domains[value].loop.size());
}
int64_t loop_extent(const Scheduler& scheduler, ir::ValueId value, int axis) {
  return scheduler.schedule().domains[value].loop[axis].extent;
}

// A count near `wanted` that divides the extent, so that no task needs a bound; `wanted` itself when there is none.
int64_t even_parts(int64_t extent, int64_t wanted) {
  for (int64_t parts = wanted; parts <= std::min(extent, 2 * wanted); ++parts) {
    if (extent % parts == 0) return parts;
  }
  for (int64_t parts = wanted; 4 * parts > 3 * wanted; --parts) {
    if (extent % parts == 0) return parts;
  }
  return wanted;
}

// Makes the outermost axis one of about `tasks` iterations, taking in as many of the outer loops as that needs.
void make_tasks(Scheduler& scheduler, ir::ValueId reference, int64_t tasks, int outer_loops) {
  while (outer_loops > 1 && loop_extent(scheduler, reference, 0) < tasks) {
    const int64_t missing = divide_up(tasks, loop_extent(scheduler, reference, 0));
    const int64_t next = loop_extent(scheduler, reference, 1);
    if (next > missing) {
      scheduler.split(reference, 1, divide_up(next, even_parts(next, missing)));
      ++outer_loops;
    }
    scheduler.merge(reference, 0);
    --outer_loops;
    if (next > missing) break;
  }
  const int64_t extent = loop_extent(scheduler, reference, 0);
  if (extent > 2 * tasks) scheduler.split(reference, 0, divide_up(extent, even_parts(extent, tasks)));
  scheduler.parallelize(reference, 0, Parallel::kTask);
}

}  // namespace

CpuPointwise propose_cpu(const Traffic& traffic, const Target& target) {
  CpuPointwise p;
  p.collapse = traffic.collapse;
  if (traffic.extents.empty()) return p;
  const int64_t lanes = std::clamp<int64_t>(target.vector_bytes / traffic.widest_lane, 2, kMaxLanes);
  size_t best = traffic.extents.size() - 1;
  for (size_t loop = best; loop-- > 0;) {
    if (lane_cost(traffic, loop, lanes) < lane_cost(traffic, best, lanes)) best = loop;
  }
  p.lane_loop = static_cast<int>(best);
  if (traffic.extents[best] > 1) p.lanes = lanes;
  for (const Access& access : traffic.accesses) {
    if (access.steps[best] <= 1 || access.bytes == 0) continue;
    const auto contiguous = std::find(access.steps.begin(), access.steps.end(), 1);
    // Short loops stay in the cache by themselves.
    if (contiguous == access.steps.end() || traffic.extents[contiguous - access.steps.begin()] <= kTile) continue;
    p.tile_loop = static_cast<int>(contiguous - access.steps.begin());
    p.tile = kTile;
  }
  double elements = 1;
  for (int64_t extent : traffic.extents) elements *= static_cast<double>(extent);
  const double tasks = elements * traffic.cost_per_element / kTaskCost;
  p.tasks = std::clamp<int64_t>(static_cast<int64_t>(tasks), 1, kMaxTasks);
  return p;
}

void schedule_cpu(Scheduler& scheduler, ir::ValueId reference, const CpuPointwise& p) {
  collapse(scheduler, reference, p.collapse);
  int outer_loops = loop_extent_rank(scheduler, reference);
  if (outer_loops == 0) return;
  // Inner parts go behind all outer loops: first those of the tile, then the lanes.
  auto move_last = [&](int axis) {
    std::vector<int> order;
    for (int i = 0; i < loop_extent_rank(scheduler, reference); ++i) {
      if (i != axis) order.push_back(i);
    }
    order.push_back(axis);
    scheduler.reorder(reference, order);
  };
  int lane_loop = p.lane_loop;
  if (p.tile > 1) {
    scheduler.split(reference, p.tile_loop, p.tile);
    move_last(p.tile_loop + 1);
  }
  if (p.lanes > 1) {
    scheduler.split(reference, lane_loop, p.lanes);
    move_last(lane_loop + 1);
    scheduler.parallelize(reference, -1, Parallel::kVector);
  }
  if (p.tasks > 1) make_tasks(scheduler, reference, p.tasks, outer_loops);
}

}  // namespace jf::plan
