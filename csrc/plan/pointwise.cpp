#include "plan/pointwise.h"

#include <algorithm>

#include "base/error.h"
#include "plan/pointwise_platforms.h"

namespace jf::plan {
namespace {

std::string print_list(const std::vector<int>& numbers) {
  std::string text;
  for (int n : numbers) text += cat(text.empty() ? "" : ",", n);
  return cat("[", text, "]");
}

struct PointwisePrinter {
  std::string operator()(const CpuPointwise& p) const {
    return cat("cpu collapse=", print_list(p.collapse), " lane_loop=", p.lane_loop, " lanes=", p.lanes,
               p.tile_loop < 0 ? "" : cat(" tile_loop=", p.tile_loop, " tile=", p.tile),
               p.along_rows ? cat(" along_rows vectors=", p.vectors) : "", " tasks=", p.tasks);
  }
  std::string operator()(const CudaPointwise& p) const {
    return cat("cuda collapse=", print_list(p.collapse), " lanes=", p.lanes, p.two_axes ? " two_axes" : "",
               " threads=", p.threads, " unroll=", p.unroll);
  }
};

struct PointwiseWriter {
  schedule::Scheduler& scheduler;
  ir::ValueId reference;

  void operator()(const CpuPointwise& p) const { schedule_cpu(scheduler, reference, p); }
  void operator()(const CudaPointwise& p) const { schedule_cuda(scheduler, reference, p); }
};

// Rows enough that half as many blocks keep a GPU busy.
constexpr int64_t kRowsToUnroll = 16 << 10;

// Whether a kernel finds out where rows are before it reads them, so that a thread should have two on their way.
bool finds_rows(const ir::Fusion& segment) {
  return std::any_of(segment.ops.begin(), segment.ops.end(), [](const ir::Op& op) {
    return op.kind == ir::OpKind::kSearch || (op.kind == ir::OpKind::kTake && op.inputs.size() > 1);
  });
}

}  // namespace

PointwiseParameters propose(const ir::Fusion& segment, const Target& target) {
  const Traffic facts = traffic(segment, segment.outputs.front());
  if (target.platform == Platform::kCpu) return propose_cpu(facts, target);
  CudaPointwise p = propose_cuda(facts, target);
  if (p.two_axes && p.unroll == 1 && finds_rows(segment) && facts.extents.front() >= kRowsToUnroll) p.unroll = 2;
  return p;
}

std::string print(const PointwiseParameters& parameters) { return std::visit(PointwisePrinter{}, parameters); }

schedule::Schedule pointwise_schedule(const ir::Fusion& segment, const PointwiseParameters& parameters) {
  const ir::ValueId reference = segment.outputs.front();
  schedule::Scheduler scheduler(segment);
  std::visit(PointwiseWriter{scheduler, reference}, parameters);
  scheduler.transform_like(reference);
  scheduler.parallelize_like(reference);
  scheduler.inline_most();
  return scheduler.schedule();
}

}  // namespace jf::plan
