// Which ops run together. Near linear in the number of ops.
//
// Values that must be in memory (outputs, operands of grouped products, values that several segments need and that are
// dear to compute again) each belong to one segment; everything else is computed in registers by every segment that
// uses it. What a cluster of reductions computes belongs to the cluster's segment.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/target.h"
#include "ir/fusion.h"
#include "plan/clusters.h"

namespace jf::plan {

// kNested: what folds the rows of nested values or combines them, with all nested values that leads to it.
enum class DraftKind : uint8_t { kPointwise, kReduction, kGrouped, kNested };

struct Draft {
  DraftKind kind = DraftKind::kPointwise;
  std::string reason;
  std::vector<size_t> ops;           // numbers in fusion.ops, ascending
  std::vector<ir::ValueId> outputs;  // values this segment stores, ascending
  std::vector<Place> places;         // of the outputs in the iteration domain; none for a grouped product
  std::map<size_t, Place> folds;     // by number of a reduction: the axes of the iteration domain that its dims are
};

// By value: in whose memory it is where kernels read it. Reshapes of what is stored are that, by another shape.
std::vector<ir::ValueId> memory_of(const ir::Fusion& fusion);

// In an order in which they can run.
std::vector<Draft> draft_segments(const ir::Fusion& fusion, const Target& target);

}  // namespace jf::plan
