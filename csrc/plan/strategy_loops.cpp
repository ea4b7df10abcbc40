#include "plan/strategy_loops.h"

#include <algorithm>

#include "base/target.h"

namespace jf::plan {

using schedule::Parallel;
using schedule::Scheduler;

namespace {

// Of an element where lanes move, and of what is moved at least.
constexpr int64_t kMovedBytes = 2, kWordBytes = 4;
// Cost of a task, in elements of cost 1: about 150 us, below which waking another thread gains nothing.
constexpr double kTaskCost = 256 << 10;
// A few for each core of a large machine, so that uneven ones balance.
constexpr int64_t kMaxTasks = 64;
// Lanes that go round, or are every few elements of memory, are shuffled by their numbers: in one instruction 16 bytes,
// and no more of them.
constexpr int64_t kMostShuffled = 16;
// To fold the lanes of a register of bytes takes as long as some registers: rows have so many of narrower ones.
constexpr int64_t kRegistersOfRow = 4;
// A repeated element costs a fraction of a vector.
constexpr double kSplatCost = 0.25;

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

}  // namespace

int64_t vector_lanes(const Traffic& traffic, size_t loop) {
  int64_t lanes = kMaxVectorBytes;
  for (const Access& access : traffic.accesses) {
    if (access.bytes == 0 || access.steps[loop] != 1) continue;
    lanes = std::min(lanes, kMaxVectorBytes / access.bytes);
    for (size_t other = 0; other < access.steps.size(); ++other) {
      while (other != loop && lanes > 1 && access.steps[other] % lanes != 0) lanes /= 2;
    }
    while (lanes > 1 && access.offset % lanes != 0) lanes /= 2;
    while (lanes > 1 && !access.edges.empty() && access.edges[loop] % lanes != 0) lanes /= 2;
  }
  while (lanes > 1 && traffic.extents[loop] % lanes != 0) lanes /= 2;
  return lanes;
}

namespace {

// Lines that a warp's access touches, for each of its elements.
double lines_of_element(int64_t step, int64_t bytes, int64_t lanes) {
  const double apart = static_cast<double>(std::abs(step) * bytes) / kLine, alone = 1.0 / kWarp;
  if (std::abs(step) < 2) return std::max(apart, alone / static_cast<double>(lanes));
  return std::clamp(apart * static_cast<double>(lanes), alone, 1.0);
}

}  // namespace

int64_t coalesced_lanes(const Traffic& traffic, size_t loop, int64_t lanes) {
  int64_t best = lanes;
  double fewest = 0;
  for (int64_t each = lanes; each > 0; each /= 2) {
    double lines = 0;
    for (const Access& access : traffic.accesses) {
      double share = access.bytes > 0 ? 1 : 0;
      for (size_t other = 0; other < access.steps.size(); ++other) {
        // Read before the fold.
        if (access.steps[other] == 0 && traffic.folded[other]) share /= static_cast<double>(traffic.extents[other]);
      }
      lines += share * lines_of_element(access.steps[loop], access.bytes, each);
    }
    if (each < lanes && lines >= fewest) continue;
    best = each;
    fewest = lines;
  }
  return best;
}

bool rows_begin_alike(const Traffic& traffic, size_t loop, int64_t lanes) {
  const Access* first = nullptr;
  for (const Access& access : traffic.accesses) {
    if (access.steps[loop] == 0 && access.bytes > 0) continue;
    const bool whole = access.edges.empty() || access.edges[loop] == 0;
    const bool fits = access.bytes > 0 && access.bytes * lanes <= kMaxVectorBytes && access.bytes * lanes >= kWordBytes;
    if (access.steps[loop] != 1 || !fits || access.offset % lanes != 0 || !whole) return false;
    const bool column = std::count(access.steps.begin(), access.steps.end(), 0) + 1 == std::ssize(access.steps);
    if (column) continue;
    if (first == nullptr) first = &access;
    for (size_t other = 0; other < access.steps.size(); ++other) {
      if (other == loop) continue;
      const int64_t begins = traffic.across[other] ? 0 : first->steps[other] % lanes;
      if (access.steps[other] % lanes != begins) return false;
    }
  }
  return first != nullptr;
}

bool stores_rows(const Traffic& traffic, size_t lane_loop) {
  return std::any_of(traffic.accesses.begin(), traffic.accesses.end(),
                     [&](const Access& access) { return access.stores && access.steps[lane_loop] == 1; });
}

bool reads_columns(const Traffic& traffic, size_t lane_loop) {
  return std::any_of(traffic.accesses.begin(), traffic.accesses.end(), [&](const Access& access) {
    if (access.bytes == 0 || access.steps[lane_loop] != 1) return false;
    for (size_t loop = 0; loop < access.steps.size(); ++loop) {
      if (loop != lane_loop && traffic.extents[loop] > 1 && access.steps[loop] != 0) return false;
    }
    return true;
  });
}

int64_t moved_lanes(const Traffic& traffic, size_t loop) {
  const Access* row = nullptr;
  int64_t bytes = 0;
  for (const Access& access : traffic.accesses) {
    const int64_t own = access.steps[loop];
    if (own == 0 || access.bytes == 0) continue;
    const bool whole = access.edges.empty() || access.edges[loop] == 0;
    if (bytes == 0) bytes = access.bytes;
    const bool can_move = bytes == kMovedBytes || bytes == kWordBytes;
    if (own != 1 || !can_move || access.bytes != bytes || access.offset != 0 || !whole) return 1;
    const bool column =
        std::count(access.steps.begin(), access.steps.end(), 0) + 1 == static_cast<std::ptrdiff_t>(access.steps.size());
    if (column) continue;
    if (row != nullptr && row->steps != access.steps) return 1;
    row = &access;
  }
  return row == nullptr ? 1 : kMaxVectorBytes / bytes;
}

int64_t most_shuffled_lanes(const Traffic& traffic, const Target& target) {
  return std::clamp<int64_t>(target.vector_bytes / traffic.widest_lane, 2, kMostShuffled);
}

int64_t register_lanes(const Traffic& traffic, size_t loop, const Target& target) {
  const int64_t least = most_shuffled_lanes(traffic, target);
  const bool shuffles = std::any_of(traffic.accesses.begin(), traffic.accesses.end(), [&](const Access& access) {
    return access.bytes > 0 && std::abs(access.steps[loop]) > 1;
  });
  if (shuffles) return least;
  const int64_t extent = traffic.extents[loop];
  int64_t lanes = std::max(target.vector_bytes / traffic.widest_lane, least);
  while (lanes > least && (traffic.folded[loop] ? extent < kRegistersOfRow * lanes : extent <= lanes / 2)) lanes /= 2;
  return lanes;
}

double lane_cost(const Traffic& traffic, size_t loop, int64_t lanes, double gather_cost) {
  double cost = traffic.cost_per_element;
  for (const Access& access : traffic.accesses) {
    const int64_t step = access.steps[loop];
    cost += step == 0 ? kSplatCost : std::abs(step) == 1 || access.bytes == 0 ? 1 : gather_cost;
  }
  const int64_t extent = traffic.extents[loop];
  const double used = static_cast<double>(extent) / static_cast<double>(divide_up(extent, lanes) * lanes);
  return cost / used;
}

int64_t task_count(const Traffic& traffic) {
  double elements = 1;
  for (int64_t extent : traffic.extents) elements *= static_cast<double>(extent);
  const double tasks = elements * traffic.cost_per_element / kTaskCost;
  return std::clamp<int64_t>(static_cast<int64_t>(tasks), 1, kMaxTasks);
}

int loop_rank(const Scheduler& scheduler, ir::ValueId value) {
  return static_cast<int>(scheduler.schedule().domains[value].loop.size());
}
int64_t loop_extent(const Scheduler& scheduler, ir::ValueId value, int axis) {
  return scheduler.schedule().domains[value].loop[axis].extent;
}

bool Loops::merge(int first, int count) {
  for (int i = 1; i < count; ++i) scheduler_.merge(reference_, first);
  return count > 0;
}

void Loops::move(int from, int to) {
  std::vector<int> order;
  for (int i = 0; i < rank(); ++i) {
    if (i != from) order.push_back(i);
  }
  order.insert(order.begin() + to, from);
  reorder(order);
}

void collapse(Scheduler& scheduler, ir::ValueId reference, const std::vector<int>& axes) {
  for (size_t loop = 0; loop < axes.size(); ++loop) {
    for (int i = 1; i < axes[loop]; ++i) scheduler.merge(reference, static_cast<int>(loop));
  }
}

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

}  // namespace jf::plan
