// The grouped strategy: a segment that is one grouped matrix product, run by a hand-written kernel.
#pragma once

#include "grouped/problem.h"
#include "ir/fusion.h"

namespace jf::plan {

grouped::Problem grouped_problem(const ir::Fusion& segment);

}  // namespace jf::plan
