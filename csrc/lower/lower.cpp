#include "lower/lower.h"

#include <set>

#include "base/error.h"
#include "lower/compute.h"
#include "lower/legal.h"
#include "lower/nest.h"

namespace jf::lower {
namespace {

using ir::Fusion;
using ir::ValueId;
using schedule::Domain;
using schedule::Parallel;
using schedule::Schedule;

// Outputs share the nest, so each must need exactly its bounds.
void check_same_bounds(const Fusion& segment, const Schedule& schedule, const Nest& nest) {
  auto equal = [](const auto& a, const auto& b) { return graph::same(a.first, b.first) && a.second == b.second; };
  for (ValueId id : segment.outputs) {
    const std::optional<Nest> own = make_nest(schedule.domains[id], nest.lane.has_value());
    const bool same = own && own->lane_limit == nest.lane_limit && own->below.size() == nest.below.size() &&
                      std::equal(own->below.begin(), own->below.end(), nest.below.begin(), equal);
    JF_REQUIRE(same, "[lower] output ", segment.values[id].name, " ends at other iterations than output ",
               segment.values[segment.outputs.front()].name, "; use transform_like");
  }
}

std::vector<loops::Buffer> list_buffers(const Fusion& segment) {
  std::vector<loops::Buffer> buffers;
  std::set<std::string> names;
  auto add = [&](ValueId id, bool written) {
    std::string name = segment.values[id].name;
    while (!names.insert(name).second) name += "_out";  // an output that copies an input
    buffers.push_back({name, segment.values[id].dtype, written});
  };
  for (ValueId id : segment.inputs) add(id, false);
  for (ValueId id : segment.outputs) add(id, true);
  return buffers;
}

int64_t extent_of(const Domain& domain, Parallel parallel) {
  for (const auto& axis : domain.loop) {
    if (axis.parallel == parallel) return axis.extent;
  }
  return 1;
}

// Whether an index or a flat iteration may not fit 32 bits.
bool needs_wide_index(const Fusion& segment, const Domain& domain) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  int64_t iterations = 1;
  for (const auto& axis : domain.loop) iterations *= axis.extent;
  bool wide = iterations >= kLimit;
  for (const ir::Value& value : segment.values) wide = wide || ir::elements(value) >= kLimit;
  return wide;
}

}  // namespace

loops::Kernel lower(const Fusion& segment, const Schedule& schedule, const Target& target) {
  // 1. One nest can compute the segment in registers. Everything below relies on it.
  check_legal(segment, schedule, target);
  const Domain& domain = schedule.domains[segment.outputs.front()];

  // 2. The loops and bounds of the outputs, and 3. what happens inside them; first with lanes, then without, where some
  // bound or access does not follow lanes evenly.
  std::optional<Nest> nest = make_nest(domain, true);
  std::optional<Computation> computation;
  if (nest) computation = compute(segment, schedule, *nest);
  if (!computation) {
    nest = make_nest(domain, false);
    computation = compute(segment, schedule, *nest);
  }
  check_same_bounds(segment, schedule, *nest);

  // 4. The kernel around them.
  loops::Kernel kernel;
  kernel.name = segment.name;
  kernel.buffers = list_buffers(segment);
  kernel.registers = std::move(computation->registers);
  kernel.width = nest->lane ? static_cast<int>(domain.loop.back().extent) : 1;
  kernel.wide_index = needs_wide_index(segment, domain);
  kernel.grid = extent_of(domain, target.platform == Platform::kCpu ? Parallel::kTask : Parallel::kBlock);
  kernel.block = static_cast<int>(extent_of(domain, Parallel::kThread));
  kernel.body = wrap(*nest, std::move(computation->body));
  return kernel;
}

}  // namespace jf::lower
