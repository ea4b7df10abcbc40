// The calls that change one value's domain.

#include "base/error.h"
#include "base/integers.h"
#include "base/lists.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::schedule {
namespace {

// Parallel types follow their axes; an axis that a transform takes apart must not have one yet.
struct ParallelMover {
  std::vector<LoopAxis>& loop;
  const std::string& value;

  void require_serial(const char* call, int axis) const {
    JF_REQUIRE(loop[axis].parallel == Parallel::kSerial, "[", call, "] axis ", axis, " of ", value, " is already ",
               name(loop[axis].parallel), "; transform axes before parallelizing them");
  }
  void operator()(const Split& s) const {
    require_serial("split", s.axis);
    loop.insert(loop.begin() + s.axis, LoopAxis{});
  }
  void operator()(const Merge& m) const {
    require_serial("merge", m.axis);
    require_serial("merge", m.axis + 1);
    loop.erase(loop.begin() + m.axis);
  }
  void operator()(const Reorder& r) const {
    const std::vector<LoopAxis> old = loop;
    for (size_t i = 0; i < old.size(); ++i) loop[i] = old[r.order[i]];
  }
  void operator()(const Swizzle& s) const {
    require_serial("swizzle", s.x);
    require_serial("swizzle", s.y);
  }
  void operator()(const Insert& i) const { loop.insert(loop.begin() + i.axis, LoopAxis{}); }
  void operator()(const Drop& d) const {
    require_serial("drop", d.axis);
    loop.erase(loop.begin() + d.axis);
  }
};

// The axis that an op takes in parts, and how many; 0 for none.
std::pair<int, int64_t> parts_along(const ir::Fusion& fusion, const ir::Op& op) {
  if (const auto* scan = std::get_if<ir::Scan>(&op.attribute)) return {static_cast<int>(scan->axis), scan->parts};
  if (const auto* reduce = std::get_if<ir::Reduce>(&op.attribute)) {
    return {static_cast<int>(reduce->dims[0]), reduce->parts};
  }
  if (op.kind != ir::OpKind::kSpread) return {0, 0};
  const int64_t axis = std::get<ir::Dims>(op.attribute).dims[0];
  return {static_cast<int>(axis), fusion.values[op.inputs[0]].axes[axis].extent};
}

std::vector<Ragged> ragged(const ir::Value& value, int combined) {
  std::vector<Ragged> result;
  for (int axis : ir::ragged_axes(value)) {
    const std::vector<int64_t>& by = value.axes[axis].by;
    result.push_back({axis, value.axes[axis].extents, {by.begin(), by.end()}, combined});
  }
  return result;
}

}  // namespace

Schedule unscheduled(const ir::Fusion& fusion) {
  Schedule schedule;
  for (const ir::Value& value : fusion.values) {
    Domain domain;
    domain.logical = ir::shape(value);
    domain.ragged = ragged(value, 0);
    schedule.domains.push_back(std::move(domain));
  }
  for (const ir::Op& op : fusion.ops) {
    if (const auto* scan = std::get_if<ir::Scan>(&op.attribute)) {
      schedule.domains[op.output].scanned = static_cast<int>(scan->axis);
    }
    if (const auto [axis, parts] = parts_along(fusion, op); parts > 0) {
      Domain& domain = schedule.domains[op.output];
      domain.in_parts = true;
      const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
      domain.transforms = {Split{axis, parts, /*inner=*/reduce != nullptr && reduce->in_turn}};
    }
    const ir::Reduce* reduce = std::get_if<ir::Reduce>(&op.attribute);
    const bool combines = op.kind == ir::OpKind::kCombine;
    if (reduce == nullptr && !combines) continue;
    Domain& domain = schedule.domains[op.output];
    domain.logical = ir::shape(fusion.values[op.inputs[0]]);
    const int combined = combines ? static_cast<int>(std::get<ir::Combine>(op.attribute).components) : 0;
    domain.ragged = ragged(fusion.values[op.inputs[0]], combined);
    if (combines) continue;
    domain.reduced.resize(domain.logical.size(), false);
    for (int64_t dim : reduce->dims) domain.reduced[dim] = true;
  }
  for (Domain& domain : schedule.domains) {
    const AxisTree tree = replay(domain, "a value");
    for (int node : tree.loop) domain.loop.push_back({tree.extents[node]});
  }
  return schedule;
}

Scheduler::Scheduler(const ir::Fusion& fusion) : Scheduler(fusion, unscheduled(fusion)) {}

Scheduler::Scheduler(const ir::Fusion& fusion, Schedule start)
    : fusion_(fusion), consumers_(fusion.values.size()), schedule_(std::move(start)) {
  verify(fusion, schedule_);
  for (const ir::Op& op : fusion.ops) {
    for (ValueId id : op.inputs) consumers_[id].push_back(op.output);
  }
}

Domain& Scheduler::domain(ValueId value, const char* call) {
  JF_REQUIRE(value >= 0 && value < static_cast<ValueId>(schedule_.domains.size()), "[", call, "] unknown value ", value,
             "; the fusion has ", schedule_.domains.size(), " values");
  return schedule_.domains[value];
}

int Scheduler::checked_axis(ValueId value, int axis, const char* call) const {
  const int rank = static_cast<int>(schedule_.domains[value].loop.size());
  const int positive = axis < 0 ? axis + rank : axis;
  JF_REQUIRE(positive >= 0 && positive < rank, "[", call, "] ", fusion_.values[value].name, " has ", rank,
             " loop axes; expected an axis in [", -rank, ", ", rank, "), got ", axis);
  return positive;
}

// An input that is an output, too, is copied by loops of its own.
void Scheduler::require_loops(ValueId value, const char* call) const {
  const bool is_read_only = contains(fusion_.inputs, value) && !contains(fusion_.outputs, value);
  JF_REQUIRE(
      !is_read_only, "[", call, "] ", fusion_.values[value].name,
      " is an input, which is read and has no loops; schedule what computes with it, or a copy: see cache_after");
}

void Scheduler::apply(ValueId value, const Transform& transform) {
  const std::string& name = fusion_.values[value].name;
  Domain changed = schedule_.domains[value];
  AxisTree tree = replay(changed, name);
  schedule::apply(tree, transform, name);
  std::visit(ParallelMover{changed.loop, name}, transform);
  for (size_t i = 0; i < tree.loop.size(); ++i) changed.loop[i].extent = tree.extents[tree.loop[i]];
  check_parallel(changed, name);
  changed.transforms.push_back(transform);
  changed.inline_at = 0;
  schedule_.domains[value] = std::move(changed);
}

void Scheduler::split(ValueId value, int axis, int64_t factor, bool inner) {
  domain(value, "split");
  require_loops(value, "split");
  apply(value, Split{checked_axis(value, axis, "split"), factor, inner});
}

void Scheduler::merge(ValueId value, int axis) {
  domain(value, "merge");
  require_loops(value, "merge");
  apply(value, Merge{checked_axis(value, axis, "merge")});
}

void Scheduler::pad(ValueId value, int axis, int64_t multiple) {
  Domain& target = domain(value, "pad");
  require_loops(value, "pad");
  const int at = checked_axis(value, axis, "pad");
  const int64_t extent = target.loop[at].extent;
  JF_REQUIRE(multiple > 0 && multiple <= kMaxFactor, "[pad] axis ", at, " of ", fusion_.values[value].name,
             ": expected a multiple of 1 to ", kMaxFactor, ", got ", multiple);
  const int64_t padded = round_up(extent, multiple);
  JF_REQUIRE(target.loop[at].parallel == Parallel::kSerial, "[pad] axis ", at, " of ", fusion_.values[value].name,
             " is already ", name(target.loop[at].parallel), "; transform axes before parallelizing them");
  JF_REQUIRE(padded <= kMaxFactor, "[pad] axis ", at, " of ", fusion_.values[value].name, " has extent ", extent,
             "; the next multiple of ", multiple, " is above ", kMaxFactor);
  if (padded == extent) return;
  apply(value, Split{at, padded});
  apply(value, Merge{at});
}

void Scheduler::reorder(ValueId value, const std::vector<int>& order) {
  domain(value, "reorder");
  require_loops(value, "reorder");
  std::vector<int> positive;
  bool identity = true;
  for (int axis : order) {
    identity = identity && axis == static_cast<int>(positive.size());
    positive.push_back(checked_axis(value, axis, "reorder"));
  }
  if (!identity || order.size() != schedule_.domains[value].loop.size()) apply(value, Reorder{std::move(positive)});
}

void Scheduler::swizzle(ValueId value, int x, int y) {
  domain(value, "swizzle");
  require_loops(value, "swizzle");
  apply(value, Swizzle{checked_axis(value, x, "swizzle"), checked_axis(value, y, "swizzle")});
}

void Scheduler::parallelize(ValueId value, int axis, Parallel parallel) {
  Domain changed = domain(value, "parallelize");
  require_loops(value, "parallelize");
  changed.loop[checked_axis(value, axis, "parallelize")].parallel = parallel;
  changed.inline_at = 0;
  check_parallel(changed, fusion_.values[value].name);
  schedule_.domains[value] = std::move(changed);
}

void Scheduler::set_allocation(ValueId value, int first_axis, int64_t pad) {
  Domain& target = domain(value, "set_allocation");
  const std::string& name = fusion_.values[value].name;
  const int first = checked_axis(value, first_axis, "set_allocation");
  JF_REQUIRE(target.memory == Memory::kShared, "[set_allocation] ", name,
             " is kept in registers, which have no layout; call set_memory(shared) first");
  JF_REQUIRE(pad >= 0 && pad <= kMaxPad, "[set_allocation] ", name, ": expected a pad of 0 to ", kMaxPad,
             " elements, got ", pad);
  const AxisTree tree = replay(target, name);
  target.storage.assign(tree.loop.begin() + first, tree.loop.end());
  target.pad = pad;
}

void Scheduler::circular_buffer(ValueId value, int stages, int prefetch) {
  Domain changed = domain(value, "circular_buffer");
  changed.stages = stages;
  changed.prefetch = prefetch;
  check_stages(changed, fusion_.values[value].name);
  schedule_.domains[value] = std::move(changed);
}

void Scheduler::set_memory(ValueId value, Memory memory) {
  Domain& target = domain(value, "set_memory");
  const bool is_input = contains(fusion_.inputs, value);
  JF_REQUIRE(!is_input, "[set_memory] ", fusion_.values[value].name,
             " is an input, which is in global memory; only what the fusion computes can be kept elsewhere");
  JF_REQUIRE(memory == Memory::kShared || target.stages == 1, "[set_memory] ", fusion_.values[value].name, " has ",
             target.stages, " stages, which only a shared value can have; call circular_buffer(1, 0) first");
  target.memory = memory;
  if (memory == Memory::kShared) return;
  target.storage.clear();
  target.pad = 0;
}

}  // namespace jf::schedule
