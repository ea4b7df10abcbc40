// The pointwise strategy on each platform.
#pragma once

#include "plan/pointwise.h"
#include "plan/traffic.h"

namespace jf::plan {

CpuPointwise propose_cpu(const Traffic& traffic, const Target& target);
CudaPointwise propose_cuda(const Traffic& traffic, const Target& target);

// Write the loops of the reference.
void schedule_cpu(schedule::Scheduler& scheduler, ir::ValueId reference, const CpuPointwise& parameters);
void schedule_cuda(schedule::Scheduler& scheduler, ir::ValueId reference, const CudaPointwise& parameters);

}  // namespace jf::plan
