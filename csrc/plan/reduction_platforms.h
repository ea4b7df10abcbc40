// The reduction strategy on each platform.
#pragma once

#include "plan/reduction.h"
#include "plan/traffic.h"

namespace jf::plan {

// What the platforms decide from.
struct RowFacts {
  const ir::Fusion& segment;
  const Traffic& traffic;
  Phases phases(Keep keep) const { return split_phases(segment, traffic, keep); }
};
CpuReduction propose_cpu(const RowFacts& facts, const Target& target);
CudaReduction propose_cuda(const RowFacts& facts, const Target& target);
// Whether nothing but rows of bf16 is kept, two elements in a register: half of what Phases counts.
bool kept_in_pairs(const Phases& phases);
// Has the rows brought by bulk copies ahead of their use, where that is faster.
void prefer_stages(const RowFacts& facts, CudaReduction& parameters, const Target& target);
// The same without asking whether it is faster, where two stages of the rows fit.
void add_stages(const RowFacts& facts, CudaReduction& parameters, const Target& target);
// A grid whose blocks all run at once, for rows that come in stages.
int64_t blocks_of_stages(const RowFacts& facts, const CudaReduction& parameters, const Target& target);

// Write the loops of the reference.
void schedule_cpu(schedule::Scheduler& scheduler, ir::ValueId reference, const Traffic& traffic,
                  const CpuReduction& parameters);
void schedule_cuda(schedule::Scheduler& scheduler, ir::ValueId reference, const Traffic& traffic,
                   const CudaReduction& parameters);
// An output and the value that it is a copy of.
struct StoredRows {
  ir::ValueId from, output;
};
// Makes each output that is a row the copy of a value of its own.
std::vector<StoredRows> store_rows_in_bulk(Phases& phases);
// The loops of all values where rows come in stages.
void schedule_stages(schedule::Scheduler& scheduler, const Phases& phases, const std::vector<StoredRows>& stored,
                     ir::ValueId reference, const Traffic& traffic, const CudaReduction& parameters);

}  // namespace jf::plan
