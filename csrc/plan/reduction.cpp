#include "plan/reduction.h"

#include <algorithm>

#include "base/error.h"
#include "base/lists.h"
#include "plan/reduction_platforms.h"
#include "schedule/axes.h"

namespace jf::plan {
namespace {

// A reduction or scan has all axes of the iteration domain, one in parts the parts as well.
ir::ValueId reference_of(const ir::Fusion& fusion) {
  ir::ValueId reference = -1;
  for (const ir::Op& op : fusion.ops) {
    const ir::Reduce* reduce = std::get_if<ir::Reduce>(&op.attribute);
    const auto* scan = std::get_if<ir::Scan>(&op.attribute);
    if (reduce == nullptr && scan == nullptr) continue;
    if (reduce != nullptr ? reduce->parts > 0 : scan->parts > 0) return op.output;
    if (reference < 0) reference = op.output;
  }
  JF_CHECK(reference >= 0, fusion.name, " has no reduction");
  return reference;
}

// Where the loops along the rows begin: the innermost position at which a reduction of them is complete, or where a
// scan begins.
int loops_before_rows(const Phases& phases, const schedule::Schedule& schedule) {
  const ir::Fusion& fusion = phases.fusion;
  int position = 0;
  for (const ir::Op& op : fusion.ops) {
    if (contains(phases.runs, op.output)) continue;
    if (std::holds_alternative<ir::Reduce>(op.attribute)) {
      position = std::max(position, schedule.domains[op.output].inline_at);
    } else if (std::holds_alternative<ir::Scan>(op.attribute)) {
      const schedule::Domain& domain = schedule.domains[op.output];
      const schedule::AxisTree axes = schedule::replay(domain, fusion.values[op.output].name);
      int first = 0;
      while (axes.scanned[axes.loop[first]] == 0) ++first;
      position = std::max(position, first);
    }
  }
  return position;
}

struct ReductionPrinter {
  std::string operator()(const CpuReduction& p) const {
    return cat("cpu lane_loop=", p.lane_loop, " lanes=", p.lanes, " chunk=", p.chunk,
               p.rows > 1 ? cat(" rows=", p.rows) : "", " keep=", name(p.keep), " tasks=", p.tasks);
  }
  std::string operator()(const CudaReduction& p) const {
    return cat("cuda along=", name(p.along), " lane_loop=", p.lane_loop, " lanes=", p.lanes, " threads=", p.threads,
               " threads_y=", p.threads_y, " unroll=", p.unroll, " keep=", name(p.keep),
               p.stages > 1 ? cat(" stages=", p.stages, " blocks=", p.blocks, p.bulk_store ? " bulk_store" : "") : "",
               p.cluster > 1 ? cat(" cluster=", p.cluster) : "", p.keep_columns ? " keep_columns" : "",
               p.keep_wide ? " keep_wide" : "", p.at_once > 1 ? cat(" at_once=", p.at_once) : "");
  }
};

struct ReductionWriter {
  schedule::Scheduler& scheduler;
  const Phases& phases;
  const std::vector<StoredRows>& stored;
  ir::ValueId reference;
  const Traffic& traffic;

  void operator()(const CpuReduction& p) const {
    schedule_cpu(scheduler, reference, traffic, p);
    like_reference();
  }
  void operator()(const CudaReduction& p) const {
    if (p.stages > 1) {
      return schedule_stages(scheduler, phases, stored, reference, traffic, p);
    }
    schedule_cuda(scheduler, reference, traffic, p);
    like_reference();
  }
  void like_reference() const {
    scheduler.transform_like(reference);
    scheduler.parallelize_like(reference);
  }
};

bool in_stages(const ReductionParameters& parameters) {
  const auto* cuda = std::get_if<CudaReduction>(&parameters);
  return cuda != nullptr && cuda->stages > 1;
}
KeepMore keep_more(const ReductionParameters& parameters) {
  const auto* cuda = std::get_if<CudaReduction>(&parameters);
  if (cuda == nullptr) return {};
  return {.rows = cuda->stages > 1, .columns = cuda->keep_columns, .converted = cuda->keep_wide};
}

}  // namespace

std::string_view name(ThreadsAlong along) {
  switch (along) {
    case ThreadsAlong::kRow: return "row";
    case ThreadsAlong::kRows: return "rows";
    case ThreadsAlong::kColumns: return "columns";
    case ThreadsAlong::kRuns: return "runs";
  }
  JF_CHECK(false, "threads along ", static_cast<int>(along));
}

Traffic reduction_traffic(const ir::Fusion& segment) { return traffic(segment, reference_of(segment)); }

ReductionParameters propose_reduction(const ir::Fusion& segment, const Target& target) {
  const Traffic facts = reduction_traffic(segment);
  if (target.platform == Platform::kCpu) return propose_cpu(RowFacts{segment, facts}, target);
  return propose_cuda(RowFacts{segment, facts}, target);
}

std::string print(const ReductionParameters& parameters) { return std::visit(ReductionPrinter{}, parameters); }

ReductionKernel reduction_kernel(const ir::Fusion& segment, const ReductionParameters& parameters) {
  const Traffic facts = reduction_traffic(segment);
  const Keep keep = std::visit([](const auto& p) { return p.keep; }, parameters);
  Phases phases = split_phases(segment, facts, keep, keep_more(parameters));
  std::vector<StoredRows> stored;
  if (in_stages(parameters) && std::get<CudaReduction>(parameters).bulk_store) stored = store_rows_in_bulk(phases);
  schedule::Scheduler scheduler(phases.fusion);
  std::visit(ReductionWriter{scheduler, phases, stored, reference_of(phases.fusion), facts}, parameters);
  scheduler.inline_most();
  for (const auto& [from, output] : stored) {
    // Inside of all loops that both have; threads write rows side by side that may be copied in turn.
    const std::vector<schedule::Domain>& domains = scheduler.schedule().domains;
    int position = schedule::first_bulk(domains[output]);
    while (domains[from].loop[position - 1].parallel == schedule::Parallel::kThreadY) --position;
    scheduler.inline_at(from, position);
  }
  const int before_rows = loops_before_rows(phases, scheduler.schedule());
  for (ir::ValueId id : phases.outside) {
    scheduler.inline_at(id, std::min(before_rows, scheduler.schedule().domains[id].inline_at));
  }
  // Outside of the loop over rows.
  for (ir::ValueId id : phases.columns) {
    scheduler.inline_at(id, std::min(1, scheduler.schedule().domains[id].inline_at));
  }
  schedule::Schedule schedule = scheduler.schedule();
  return {std::move(phases.fusion), std::move(schedule)};
}

}  // namespace jf::plan
