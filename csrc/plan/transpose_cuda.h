// The transpose strategy of CUDA, for pointwise segments that read some input along another axis than they write: tiles
// of such inputs go through shared memory, so that every access to global memory is contiguous.
#pragma once

#include <optional>
#include <string>

#include "base/target.h"
#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::plan {

// Loops are those of Traffic.
struct CudaTranspose {
  int loop = 0;           // the loop along which the transposed inputs are contiguous
  int64_t tile = 64;      // its iterations and the last loop's in a tile
  int64_t lanes = 1;      // elements of a vector access
  int64_t threads = 256;  // of a block
  bool operator==(const CudaTranspose&) const = default;
};
// Nothing where no input is worth it.
std::optional<CudaTranspose> propose_transpose(const ir::Fusion& segment, const Target& target);
// "cuda transpose loop=0 tile=128 lanes=8 threads=512"
std::string print(const CudaTranspose& parameters);

struct TransposeKernel {
  ir::Fusion fusion;  // the segment with a shared copy of each such input
  schedule::Schedule schedule;
};
// Throws UserError where no input is contiguous along the loop or the tiles do not fit shared memory.
TransposeKernel transpose_kernel(const ir::Fusion& segment, const CudaTranspose& parameters);

}  // namespace jf::plan
