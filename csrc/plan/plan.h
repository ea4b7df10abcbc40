// Cuts a fusion into segments, each one kernel or one grouped matrix product, and says which values go through memory.
// Long reductions with few results are made in two stages, each in a segment of its own.
//
// Pure and deterministic: equal fusions give equal plans on all targets of a platform, with the same memory between
// segments, but where a plan says that it differs: so that this is known wherever the fusion is.
#pragma once

#include <string>
#include <vector>

#include "base/target.h"
#include "ir/fusion.h"

namespace jf::plan {

// kEmpty: the results have no elements, so that nothing is launched.
enum class Strategy : uint8_t { kPointwise, kReduction, kGrouped, kNested, kEmpty };

struct Segment {
  ir::Fusion fusion;  // reads and writes memory only through its inputs and outputs
  Strategy strategy;
  std::string reason;  // why this is a segment of its own
  // Values of Plan::fusion that fusion.inputs and fusion.outputs stand for; for a grouped product all operands, in
  // the order of the op. An input of the whole fusion may be an output here: it is copied.
  std::vector<ir::ValueId> inputs;
  std::vector<ir::ValueId> outputs;
};

struct Plan {
  // The same inputs and outputs, in the same order and memory, maybe under other shapes; its ops are in the segments.
  ir::Fusion fusion;
  std::vector<Segment> segments;  // in an order in which they can run
  // Whether a target whose kernels cannot share rows among blocks, or one whose kernels can, has other segments.
  bool differs = false;
};

Plan plan(const ir::Fusion& fusion, const Target& target);
// Whether blocks of a kernel can share rows.
bool shares_rows(const Target& target);

std::string print(const Plan& plan);

}  // namespace jf::plan
