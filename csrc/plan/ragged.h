// The strategy of nested values: kernels that fold the rows of each component, or of each of its parts, or combine
// them.
//
// Loops go over components and parts, over columns in lanes, and over the rows of a part, which end where the part
// does. On the CPU parts are tasks, so that all cores share a component that has all rows; on CUDA blocks, whose
// threads take columns and rows.
#pragma once

#include <string>

#include "base/target.h"
#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::plan {

struct NestedParameters {
  int64_t lanes = 1;    // columns of a vector; CPU: rows where there is one column
  int64_t columns = 1;  // CPU: vectors side by side; CUDA: threads along x
  int64_t rows = 1;     // CUDA: threads along y
  int64_t unroll = 1;   // CUDA: rows of a thread that are on their way together
  int64_t tasks = 1;    // CPU: calls that other threads may take
  bool keep = false;    // CUDA: `unroll` rows of a thread are all that it has, in registers from fold to fold
  bool operator==(const NestedParameters&) const = default;
};

NestedParameters propose_nested(const ir::Fusion& segment, const Target& target);
// "nested lanes=8 columns=32 rows=8 unroll=4"
std::string print(const NestedParameters& parameters);
schedule::Schedule nested_schedule(const ir::Fusion& segment, const NestedParameters& parameters, Platform platform);

}  // namespace jf::plan
