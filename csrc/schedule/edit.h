// Edits of a scheduled fusion: copies of values, and reductions taken apart. What is computed stays the same; a
// schedule has more values to place.
//
// Each call takes a fusion with its schedule and returns others, with values numbered as in the text form. The schedule
// of every other value stays; only a value inlined deeper than its new consumers allow is inlined less deep. Throws
// UserError where it cannot be.
#pragma once

#include <vector>

#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::schedule {

// Numbers the values of both as in the text form. Returns each value's new number by its old one.
std::vector<ValueId> number_as_text(ir::Fusion& fusion, Schedule& schedule);

struct Edited {
  ir::Fusion fusion;
  Schedule schedule;
  ValueId made;  // the new value
};

// All ops that read `value` read a copy of it, which has its loops.
Edited cache_after(const ir::Fusion& fusion, const Schedule& schedule, ValueId value);
// `value` becomes the copy of a new value, which has its loops; who reads `value` still does.
Edited cache_before(const ir::Fusion& fusion, const Schedule& schedule, ValueId value);
// The same for an output, but ops read the new value instead of the output.
Edited cache_fork(const ir::Fusion& fusion, const Schedule& schedule, ValueId output);
// A new reduction folds the loop axes `axes` of a reduction, which folds the others afterwards. With the inner axis of
// a split among `axes`, the new one folds every run of consecutive indices by itself. Both begin with their own axes.
Edited rfactor(const ir::Fusion& fusion, const Schedule& schedule, ValueId value, const std::vector<int>& axes);

}  // namespace jf::schedule
