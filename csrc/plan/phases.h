// The phases of a reduction kernel: it goes along each row once for the reductions that read only memory, again for
// those that need their results, and so on. A value of the row that several phases need is kept in registers or
// computed again in each. Phases that only folds of runs are between go along the row together, run by run, and keep
// what they share.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/fusion.h"
#include "plan/traffic.h"

namespace jf::plan {

// What is kept from phase to phase: nothing; what is dear to compute; also what is read from memory.
enum class Keep : uint8_t { kNothing, kDear, kRows };
std::string_view name(Keep keep);

struct Phases {
  ir::Fusion fusion;  // the segment's inputs and outputs in their order; every value is used in one phase or kept
  std::vector<ir::ValueId> outside;  // values of `fusion` that are computed outside of the rows or kept between phases
                                     // of whole rows
  std::vector<ir::ValueId> runs;     // folds of runs of a row (Traffic::runs)
  int count = 1;                     // phases
  int64_t kept_bytes = 0;            // of one element of the row: what is kept at the same time, in compute_dtype
  int64_t all_kept_bytes = 0;        // of one element of the row: each kept value has an array of its own
  int64_t column_bytes = 0;          // of one element of the row: accumulators of reductions across the rows
  std::vector<ir::ValueId> rows;     // copies of the inputs that are kept, all with the axes of the iteration domain
  std::vector<ir::ValueId> columns;  // copies of the inputs that are the same for every row, or what they become
};

// What is kept whatever else is: all inputs that are rows; those that are the same for every row; and, of both, what
// they are converted to.
struct KeepMore {
  bool rows = false, columns = false, converted = false;
};
Phases split_phases(const ir::Fusion& segment, const Traffic& traffic, Keep keep, KeepMore more = {});

}  // namespace jf::plan
