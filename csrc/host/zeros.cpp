#include "host/zeros.h"

#include "base/error.h"
#include "ir/build.h"
#include "lower/lower.h"
#include "plan/pointwise.h"

namespace jf::host {
namespace {

ir::Fusion zeros_like(const ir::Value& value, const std::string& name) {
  ir::Builder builder(name);
  const ir::ValueId zero = builder.constant(value.dtype, ir::zero_of(value.dtype));
  builder.output(builder.broadcast(zero, ir::shape(value), {}));
  ir::Fusion fusion = builder.finish();
  fusion.values[fusion.outputs[0]].name = value.name;
  return fusion;
}

}  // namespace

void add_zeros(const ir::Fusion& segment, ir::ValueId combined, const BufferRef& output, const Target& target,
               Program& program) {
  const ir::Value& value = segment.values[combined];
  const ir::Fusion zeros = zeros_like(value, cat(segment.name, "_zeros"));
  const schedule::Schedule schedule = plan::pointwise_schedule(zeros, plan::propose(zeros, target));
  program.facts.push_back(kernel_facts(zeros));
  program.facts.back().strategy = "pointwise";
  program.facts.back().reason = cat("rows of ", value.name, " that no component has are zero");
  program.scheduled.push_back({zeros, schedule});
  program.steps.push_back(KernelStep{lower::lower(zeros, schedule, target), {output}});
}

}  // namespace jf::host
