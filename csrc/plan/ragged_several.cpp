#include "plan/ragged_several.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "base/lists.h"
#include "graph/groups.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using ir::ValueId;
using schedule::Domain;
using schedule::Parallel;
using schedule::Scheduler;

constexpr int64_t kMaxTasksOfSeveral = 256, kRowBlocks = 64, kThreadsOfSeveral = 128;

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

// Keeps of the first value's outer loops those that all others have, too, and gives these the same order; the rest of
// all of them goes inside.
void agree(const ir::Fusion& segment, const schedule::Schedule& schedule, const std::vector<ValueId>& references,
           std::vector<Roles>& roles) {
  const graph::IndexGraph graph(segment, schedule);
  std::vector<Roles> common(roles.size());
  for (std::vector<int> Roles::* list : {&Roles::apart, &Roles::rows}) {
    for (int axis : roles[0].*list) {
      std::vector<int> same = {axis};
      for (size_t r = 1; r < roles.size(); ++r) {
        for (int other : roles[r].*list) {
          const bool taken = contains(common[r].*list, other);
          const bool is_same =
              !taken &&
              schedule.domains[references[r]].logical[other] == schedule.domains[references[0]].logical[axis] &&
              graph.mapped(graph::Mapping::kPermissive, {references[0], axis}, {references[r], other});
          if (!is_same) continue;
          same.push_back(other);
          break;
        }
      }
      if (same.size() != roles.size()) continue;
      for (size_t r = 0; r < roles.size(); ++r) (common[r].*list).push_back(same[r]);
    }
  }
  for (size_t r = 0; r < roles.size(); ++r) {
    for (size_t axis = 0; axis < schedule.domains[references[r]].logical.size(); ++axis) {
      const auto has = [&](const std::vector<int>& list) { return contains(list, static_cast<int>(axis)); };
      if (!has(common[r].apart) && !has(common[r].rows)) common[r].folded.push_back(static_cast<int>(axis));
    }
  }
  // What a value folds itself is innermost; what remains is where those that read it have it, before what they add.
  std::vector<size_t> order(roles.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return references[a] < references[b]; });
  std::map<int, size_t> place;  // by group of axes
  for (size_t r : order) {
    const std::vector<bool>& reduced = schedule.domains[references[r]].reduced;
    const auto key = [&](int axis) {
      const int group = graph.group(graph::Mapping::kPermissive, {references[r], axis});
      const auto known = place.find(group);
      const bool is_reduced = !reduced.empty() && reduced[axis];
      return known != place.end() ? std::pair(0, known->second) : std::pair(is_reduced ? 2 : 1, place.size());
    };
    std::stable_sort(common[r].folded.begin(), common[r].folded.end(), [&](int a, int b) { return key(a) < key(b); });
    for (int axis : common[r].folded) {
      if (key(axis).first == 2) continue;
      place.emplace(graph.group(graph::Mapping::kPermissive, {references[r], axis}), place.size());
    }
  }
  roles = std::move(common);
}

// `alone`: all values have these loops, so that threads may take the innermost one.
void make_loops(Scheduler& scheduler, ValueId id, const Roles& roles, Platform platform, bool alone) {
  std::vector<int> order = roles.apart;
  order.insert(order.end(), roles.rows.begin(), roles.rows.end());
  order.insert(order.end(), roles.folded.begin(), roles.folded.end());
  if (order.empty()) return;
  scheduler.reorder(id, order);
  for (size_t i = 1; i < roles.apart.size(); ++i) scheduler.merge(id, 0);
  const int outer = roles.apart.empty() ? 0 : 1;
  if (platform == Platform::kCpu) {
    if (outer == 0) return;
    const int64_t pieces = loop_extent(scheduler, id, 0);
    if (pieces > kMaxTasksOfSeveral) scheduler.split(id, 0, divide_up(pieces, kMaxTasksOfSeveral));
    return scheduler.parallelize(id, 0, Parallel::kTask);
  }
  const int inner = loop_rank(scheduler, id) - outer;
  const auto on_threads = [&](int axis) {
    scheduler.split(id, axis, kThreadsOfSeveral);
    scheduler.parallelize(id, axis + 1, Parallel::kThread);
  };
  if (!alone && roles.rows.empty()) {
    if (outer > 0) on_threads(0);
  } else {
    if (inner > 0) on_threads(alone ? outer + inner - 1 : outer);
    // Rows in turn, so that blocks have as much to do where most components have few.
    if (alone && !roles.rows.empty() && inner > 1) {
      scheduler.split(id, outer, kRowBlocks);
      scheduler.parallelize(id, outer + 1, Parallel::kBlockY);
    }
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
    const bool leaves = contains(segment.outputs, id);
    const size_t loops = start.domains[id].ragged.empty() ? 0 : start.domains[id].logical.size();
    return std::tuple(loops, leaves, bool{folds[id]});
  };
  std::stable_sort(left.begin(), left.end(), [&](ValueId a, ValueId b) { return rank(a) > rank(b); });
  Scheduler scheduler(segment);
  std::vector<ValueId> references;
  std::vector<std::vector<ValueId>> like;
  std::vector<Roles> roles;
  while (!left.empty() && std::get<0>(rank(left.front())) > 0) {
    references.push_back(left.front());
    left.erase(left.begin());
    roles.push_back(roles_of(segment, start, references.back()));
    like.emplace_back();
    for (ValueId id : scheduler.alike(references.back())) {
      if (std::erase(left, id) > 0) like.back().push_back(id);
    }
  }
  const bool alone = references.size() == 1;
  if (!alone) agree(segment, start, references, roles);
  for (size_t r = 0; r < references.size(); ++r) {
    make_loops(scheduler, references[r], roles[r], platform, alone);
    if (like[r].empty()) continue;
    scheduler.transform_like(references[r], like[r]);
    scheduler.parallelize_like(references[r], like[r]);
  }
  scheduler.inline_most();
  return scheduler.schedule();
}

}  // namespace jf::plan
