#include "plan/ragged_several.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "graph/groups.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using ir::ValueId;
using schedule::Domain;
using schedule::Parallel;
using schedule::Scheduler;

constexpr int64_t kMaxTasks = 256, kRowBlocks = 64, kThreads = 128;

// The root axes of a value by what its loops are to be, each list outermost first.
struct Roles {
  std::vector<int> apart, rows, folded;  // rows: ragged, and folded by nothing
};

Roles roles_of(const ir::Fusion& segment, const schedule::Schedule& schedule, ValueId id) {
  const graph::IndexGraph graph(segment, schedule);
  const Domain& domain = schedule.domains[id];
  const auto is_folded = [&](int axis) {
    for (ValueId other = 0; other < static_cast<ValueId>(segment.values.size()); ++other) {
      const std::vector<bool>& reduced = schedule.domains[other].reduced;
      for (size_t root = 0; root < reduced.size(); ++root) {
        const graph::AxisId folded{other, static_cast<int>(root)};
        if (reduced[root] && graph.mapped(graph::Mapping::kPermissive, {id, axis}, folded)) return true;
      }
    }
    return domain.scanned == axis;
  };
  const auto is_ragged = [&](int axis) {
    return std::any_of(domain.ragged.begin(), domain.ragged.end(),
                       [&](const schedule::Ragged& ragged) { return ragged.axis == axis; });
  };
  Roles roles;
  for (int axis = 0; axis < static_cast<int>(domain.logical.size()); ++axis) {
    (is_folded(axis) ? roles.folded : is_ragged(axis) ? roles.rows : roles.apart).push_back(axis);
  }
  return roles;
}

void make_loops(Scheduler& scheduler, ValueId id, const Roles& roles, Platform platform) {
  const bool cuda = platform == Platform::kCuda;
  std::vector<int> order = roles.apart;
  order.insert(order.end(), roles.rows.begin(), roles.rows.end());
  order.insert(order.end(), roles.folded.begin(), roles.folded.end());
  if (order.empty()) return;
  scheduler.reorder(id, order);
  for (size_t i = 1; i < roles.apart.size(); ++i) scheduler.merge(id, 0);
  const int outer = roles.apart.empty() ? 0 : 1;
  if (!cuda) {
    if (outer == 0) return;
    const int64_t pieces = loop_extent(scheduler, id, 0);
    if (pieces > kMaxTasks) scheduler.split(id, 0, divide_up(pieces, kMaxTasks));
    return scheduler.parallelize(id, 0, Parallel::kTask);
  }
  const int last = loop_rank(scheduler, id) - 1;
  if (last >= outer) {
    scheduler.split(id, last, kThreads);
    scheduler.parallelize(id, last + 1, Parallel::kThread);
  }
  // Rows in turn, so that blocks have as much to do where most components have few.
  if (!roles.rows.empty() && (roles.rows.size() > 1 || !roles.folded.empty())) {
    scheduler.split(id, outer, kRowBlocks);
    scheduler.parallelize(id, outer + 1, Parallel::kBlockY);
  }
  if (outer > 0) scheduler.parallelize(id, 0, Parallel::kBlock);
}

}  // namespace

bool has_several_ragged(const ir::Fusion& segment) {
  return std::any_of(segment.values.begin(), segment.values.end(),
                     [](const ir::Value& value) { return ir::ragged_axes(value).size() > 1; });
}

schedule::Schedule several_ragged_schedule(const ir::Fusion& segment, Platform platform) {
  const schedule::Schedule start = schedule::unscheduled(segment);
  std::vector<ValueId> left;
  for (const ir::Op& op : segment.ops) left.push_back(op.output);
  std::vector<bool> folds(segment.values.size(), false);
  for (const ir::Op& op : segment.ops) folds[op.output] = std::holds_alternative<ir::Reduce>(op.attribute);
  // Those with most loops first, and of them what leaves the kernel and folds: most others are like these.
  const auto rank = [&](ValueId id) {
    const bool leaves = std::find(segment.outputs.begin(), segment.outputs.end(), id) != segment.outputs.end();
    const size_t loops = start.domains[id].ragged.empty() ? 0 : start.domains[id].logical.size();
    return std::tuple(loops, leaves, bool{folds[id]});
  };
  std::stable_sort(left.begin(), left.end(), [&](ValueId a, ValueId b) { return rank(a) > rank(b); });
  Scheduler scheduler(segment);
  while (!left.empty() && std::get<0>(rank(left.front())) > 0) {
    const ValueId reference = left.front();
    left.erase(left.begin());
    std::vector<ValueId> like;
    for (ValueId id : scheduler.alike(reference)) {
      if (std::erase(left, id) > 0) like.push_back(id);
    }
    make_loops(scheduler, reference, roles_of(segment, start, reference), platform);
    if (like.empty()) continue;
    scheduler.transform_like(reference, like);
    scheduler.parallelize_like(reference, like);
  }
  scheduler.inline_most();
  return scheduler.schedule();
}

}  // namespace jf::plan
