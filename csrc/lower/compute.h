// What happens at one iteration of the nest: loads, computation, stores.
#pragma once

#include <optional>
#include <vector>

#include "ir/fusion.h"
#include "loops/kernel.h"
#include "lower/nest.h"
#include "schedule/schedule.h"

namespace jf::lower {

struct Computation {
  std::vector<DType> registers;
  loops::Body body;
};

// Buffers are numbered: inputs, then outputs. Nothing when an access does not follow the nest's lanes evenly.
std::optional<Computation> compute(const ir::Fusion& segment, const schedule::Schedule& schedule, const Nest& nest);

}  // namespace jf::lower
