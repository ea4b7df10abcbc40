#include <map>

#include "base/error.h"
#include "host/program.h"
#include "lower/lower.h"
#include "plan/grouped.h"
#include "plan/plan.h"
#include "plan/pointwise.h"
#include "schedule/schedule.h"

namespace jf::host {
namespace {

// Keeps every value between segments aligned like a buffer of XLA's own.
constexpr int64_t kWorkspaceAlignment = 256;

// Where each value of the whole fusion is in memory.
class Placement {
 public:
  explicit Placement(const ir::Fusion& fusion) : fusion_(fusion) {
    for (size_t i = 0; i < fusion.inputs.size(); ++i) {
      inputs_[fusion.inputs[i]] = {BufferKind::kInput, static_cast<int64_t>(i)};
    }
    for (size_t i = 0; i < fusion.outputs.size(); ++i) {
      outputs_[fusion.outputs[i]] = {BufferKind::kOutput, static_cast<int64_t>(i)};
    }
  }

  BufferRef read(ir::ValueId id) {
    auto found = inputs_.find(id);
    return found != inputs_.end() ? found->second : write(id);
  }
  BufferRef write(ir::ValueId id) {
    if (auto found = outputs_.find(id); found != outputs_.end()) return found->second;
    const BufferRef here{BufferKind::kWorkspace, bytes_};
    const ir::Value& value = fusion_.values[id];
    bytes_ += (ir::elements(value) * size_of(value.dtype) + kWorkspaceAlignment - 1) / kWorkspaceAlignment *
              kWorkspaceAlignment;
    return outputs_.emplace(id, here).first->second;
  }
  int64_t bytes() const { return bytes_; }

 private:
  const ir::Fusion& fusion_;
  std::map<ir::ValueId, BufferRef> inputs_, outputs_;
  int64_t bytes_ = 0;
};

}  // namespace

Program build(const ir::Fusion& fusion, const Target& target) {
  const plan::Plan plan = plan::plan(fusion);
  Program program;
  program.name = fusion.name;
  auto bytes = [&](ir::ValueId id) { return ir::elements(fusion.values[id]) * size_of(fusion.values[id].dtype); };
  for (ir::ValueId id : fusion.inputs) program.input_bytes.push_back(bytes(id));
  for (ir::ValueId id : fusion.outputs) program.output_bytes.push_back(bytes(id));
  program.segments = plan::print(plan);
  Placement placement(fusion);
  for (const plan::Segment& segment : plan.segments) {
    std::vector<BufferRef> buffers;
    for (ir::ValueId id : segment.inputs) buffers.push_back(placement.read(id));
    for (ir::ValueId id : segment.outputs) buffers.push_back(placement.write(id));
    switch (segment.strategy) {
      case plan::Strategy::kEmpty: break;
      case plan::Strategy::kGrouped:
        program.steps.push_back(
            GroupedStep{segment.fusion.name, plan::grouped_problem(segment.fusion), std::move(buffers)});
        break;
      case plan::Strategy::kPointwise: {
        const plan::PointwiseParameters parameters = plan::propose(segment.fusion, target);
        const schedule::Schedule schedule = plan::pointwise_schedule(segment.fusion, parameters);
        program.schedule +=
            cat(segment.fusion.name, ": ", plan::print(parameters), "\n", schedule::print(segment.fusion, schedule));
        program.steps.push_back(KernelStep{lower::lower(segment.fusion, schedule, target), std::move(buffers)});
        break;
      }
    }
  }
  program.workspace_bytes = placement.bytes();
  return program;
}

}  // namespace jf::host
