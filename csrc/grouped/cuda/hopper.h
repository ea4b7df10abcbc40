// The kernels of compute capability 9.0: tensor maps fill shared memory, warpgroups multiply (wgmma), and a block works
// through many output tiles. Which of them fits a problem, and its launch.
#pragma once

#include <string>
#include <vector>

#include "base/parameters.h"
#include "grouped/cuda/grouped_cuda.h"

namespace jf::grouped {

struct HopperConfig {
  int tile_m = 0, tile_n = 0;  // of one block
  int stages = 0;              // slices of `depth` contraction indices in flight
  int cluster = 1;             // blocks with neighbouring columns of the same rows, which share the copies of lhs
  int split = 1;               // blocks that each sum a stretch of k of the same tile; a long k's launch says how many

  int depth = 64;  // 128 bytes of a row

  bool operator==(const HopperConfig&) const = default;
};

// "tile=192x128x64 stages=4 cluster=2", "tile=64x128x64 stages=6 cluster=1 split=4"
std::string print(const HopperConfig& config);

// Why these kernels do not take the problem; empty where they do.
std::string why_not_hopper(const Problem& problem, const Target& target);

// By an analytic model, for a problem that they take. m decides only the tile, whether blocks are pairs, and the split:
// of 16-bit operands all m have three kernels. `epilogue` may be null.
HopperConfig choose_hopper(const Problem& problem, const Target& target, const RowEpilogue* epilogue = nullptr);

// All that kernels of the problem can have on the target, each with as many stages as fit.
std::vector<HopperConfig> hopper_configs(const Problem& problem, const Target& target,
                                         const RowEpilogue* epilogue = nullptr);
// By the names of the fields, for measurements to choose: what is not given stays.
Parameters fields_of(const HopperConfig& config);
HopperConfig edited(HopperConfig config, const Parameters& given);

// Whether every cluster computes as many units of work as the others, and none are taken from a queue.
bool shares_units(const Problem& problem, const HopperConfig& config, const Target& target,
                  const RowEpilogue* epilogue = nullptr);

// Throws UserError for a configuration that no kernel has or that does not fit the target.
CudaKernel hopper_kernel(const Problem& problem, const HopperConfig& config, const Target& target);

// The same with an epilogue, of which problem.out says nothing.
std::string why_not_hopper(Problem problem, const RowEpilogue& epilogue, const Target& target);
CudaKernel hopper_kernel(Problem problem, const RowEpilogue& epilogue, const Target& target,
                         const Parameters& given = {});

// Why a kernel whose result is quantized (problem.quantizes) does not take the problem; else empty. `epilogue` may be
// null.
std::string why_not_quantize(const Problem& problem, const RowEpilogue* epilogue, const Target& target);

// Why a kernel that takes rows of lhs by number (problem.lhs_rows) would not take the problem, or not be faster than
// one after a copy of these rows; else empty. `epilogue` may be null.
std::string why_not_gather(const Problem& problem, const RowEpilogue* epilogue, const Target& target);

}  // namespace jf::grouped
