// The transpose strategy of CUDA, for pointwise segments that read some input along another axis than they write: tiles
// of such inputs go through shared memory, so that every access to global memory is contiguous.
#pragma once

#include <optional>
#include <string>

#include "base/target.h"
#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::plan {

struct Transpose {
  ir::Fusion fusion;  // the segment with a shared copy of each such input
  schedule::Schedule schedule;
  std::string parameters;  // "cuda transpose loop=0 tile=64 lanes=2 threads=256 shared=1"
};

// Nothing where no input is worth it.
std::optional<Transpose> transpose_cuda(const ir::Fusion& segment, const Target& target);

}  // namespace jf::plan
