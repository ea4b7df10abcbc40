#include "lower/lower.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "lower/aligned_rows.h"
#include "lower/columns_once.h"
#include "lower/early_reads.h"
#include "lower/interleave.h"
#include "lower/legal.h"
#include "lower/loads_first.h"
#include "lower/loop_tree.h"
#include "lower/own_shifts.h"
#include "lower/prefetch.h"
#include "lower/prefetch_gathered.h"
#include "lower/scan.h"
#include "lower/turn.h"
#include "lower/turned_tiles.h"
#include "lower/unroll_phases.h"
#include "lower/unswitch.h"
#include "lower/write.h"

namespace jf::lower {
namespace {

using ir::Fusion;
using ir::ValueId;
using schedule::Domain;
using schedule::Parallel;
using schedule::Schedule;

std::vector<loops::Buffer> list_buffers(const Fusion& segment) {
  std::vector<loops::Buffer> buffers;
  std::set<std::string> names;
  auto add = [&](ValueId id, bool written) {
    std::string name = segment.values[id].name;
    while (!names.insert(name).second) name += "_out";  // an output that copies an input
    const ir::Value& value = segment.values[id];
    buffers.push_back({.name = name, .dtype = value.dtype, .written = written});
    buffers.back().bytes = bytes_of(value.dtype, ir::elements(value));
  };
  for (ValueId id : segment.inputs) add(id, false);
  for (ValueId id : segment.outputs) add(id, true);
  return buffers;
}

// Whether an index or a flat iteration may not fit 32 bits. Where components may begin anywhere, a row's index is a sum
// of two that each fit an axis.
bool needs_wide_index(const Fusion& segment, const Schedule& schedule) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  const bool ragged = std::any_of(schedule.domains.begin(), schedule.domains.end(),
                                  [](const Domain& domain) { return !domain.ragged.empty(); });
  auto long_axis = [](const ir::Value& value) {
    return std::any_of(value.axes.begin(), value.axes.end(),
                       [](const ir::Axis& axis) { return axis.extent >= kLimit / 2; });
  };
  if (ragged && std::any_of(segment.values.begin(), segment.values.end(), long_axis)) return true;
  auto wide = [&](const Domain& domain) {
    double iterations = 1;
    for (const auto& axis : domain.loop) iterations *= static_cast<double>(axis.extent);
    return iterations >= kLimit;
  };
  return std::any_of(schedule.domains.begin(), schedule.domains.end(), wide) ||
         std::any_of(segment.values.begin(), segment.values.end(),
                     [](const ir::Value& value) { return ir::elements(value) >= kLimit; });
}

// The lanes of all values that are computed or stored; 1 where they have none.
int vector_width(const Fusion& segment, const Schedule& schedule) {
  int64_t width = 1;
  auto widen = [&](ValueId id) {
    const Domain& domain = schedule.domains[id];
    if (domain.loop.empty() || domain.loop.back().parallel != Parallel::kVector) return;
    width = std::max(width, domain.loop.back().extent);
  };
  for (const ir::Op& op : segment.ops) widen(op.output);
  for (ValueId id : segment.outputs) widen(id);
  return static_cast<int>(width);
}

Schedule without_lanes(Schedule schedule) {
  for (Domain& domain : schedule.domains) {
    if (!domain.loop.empty() && domain.loop.back().parallel == Parallel::kVector) {
      domain.loop.back().parallel = Parallel::kSerial;
    }
  }
  return schedule;
}

loops::Kernel empty_kernel(const Fusion& segment, const Schedule& schedule) {
  loops::Kernel kernel;
  kernel.name = segment.name;
  kernel.buffers = list_buffers(segment);
  kernel.width = vector_width(segment, schedule);
  kernel.wide_index = needs_wide_index(segment, schedule);
  return kernel;
}

// One array for one name in what is printed: a pass may make several of one buffer.
void name_arrays(loops::Kernel& kernel) {
  std::set<std::string> taken;
  for (loops::Array& array : kernel.arrays) {
    const std::string given = array.name;
    for (int i = 2; !taken.insert(array.name).second; ++i) array.name = cat(given, "_", i);
  }
}

}  // namespace

loops::Kernel lower(const Fusion& segment, const Schedule& schedule, const Target& target, Loops loops) {
  // 1. Every value is there, with the right index, where it is read. Everything below relies on it.
  check_legal(segment, schedule, target);

  // 2. The loops, and 3. what happens inside them; first with lanes, then without, where some bound or access does not
  // follow lanes evenly.
  LoopTree tree = make_loop_tree(segment, schedule);
  loops::Kernel kernel = empty_kernel(segment, schedule);
  if (!write(segment, schedule, tree, target.platform, kernel)) {
    check_scans_without_lanes(segment, schedule);
    const Schedule scalar = without_lanes(schedule);
    tree = make_loop_tree(segment, scalar);
    kernel = empty_kernel(segment, scalar);
    write(segment, scalar, tree, target.platform, kernel);
  }

  // 4. How often all of it runs.
  kernel.grid = extent_of(tree, target.platform == Platform::kCpu ? Parallel::kTask : Parallel::kBlock);
  kernel.grid_y = extent_of(tree, Parallel::kBlockY);
  kernel.cluster = extent_of(tree, Parallel::kCluster);
  kernel.block = extent_of(tree, Parallel::kThread);
  kernel.block_y = extent_of(tree, Parallel::kThreadY);
  check_size(kernel, target);

  // 5. How it gets at memory. CPU: what is stored side by side, loaded in tiles, and fetched ahead of its use; CUDA:
  // loads that do not wait for each other, nor for folds that they do not need, and folds that need not wait for each
  // other.
  if (target.platform == Platform::kCpu) {
    unroll_phases(kernel);
    turn_gathers(kernel);
    prefetch_rows(kernel);
    prefetch_gathered_rows(kernel);
  } else {
    turn_tiles(kernel);
    align_rows(kernel);
    load_whole(kernel);
    loads_first(kernel);
    columns_once(kernel);
    own_shifts(kernel);
    read_early(kernel);
  }

  // 6. What a condition leaves out.
  if (loops == Loops::kAny) unswitch(kernel);

  // 7. CPU: whose elements lie between those of others.
  if (target.platform == Platform::kCpu) interleave(kernel);
  name_arrays(kernel);
  return kernel;
}

}  // namespace jf::lower
