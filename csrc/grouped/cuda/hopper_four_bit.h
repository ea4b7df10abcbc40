// The kernel of grouped products with packed weights of four bits: compute capability 9.0 alone.
#pragma once

#include <string>
#include <vector>

#include "grouped/cuda/grouped_cuda.h"

namespace jf::grouped {

struct FourBitConfig {
  Weights weights = Weights::kMxfp4;
  int rows = 0;    // of a tile, the most
  int stages = 0;  // of shared memory, of a piece or two
  int blocks = 1;  // of a multiprocessor

  bool operator==(const FourBitConfig&) const = default;
};

// "wgmma, mxfp4 weights in registers, tile=32x128 stages=5 blocks=2"
std::string print(const FourBitConfig& config);

// Why the kernel does not take the problem, of whose result an epilogue decides the type; empty where it does.
// `epilogue` may be null, here and below.
std::string why_not_four_bit(const Problem& problem, const Target& target, const RowEpilogue* epilogue = nullptr);

// For a problem that it takes: throws UserError with why_not_four_bit for another. m decides only the tile, one of six;
// `given` may have its rows, tile_m, and nothing else.
FourBitConfig choose_four_bit(const Problem& problem, const Target& target, const RowEpilogue* epilogue = nullptr,
                              const Parameters& given = {});
Parameters fields_of(const FourBitConfig& config);
// Of every tile.
std::vector<Parameters> four_bit_fields();
// As in hopper.h.
bool shares_units(const Problem& problem, const FourBitConfig& config, const Target& target,
                  const RowEpilogue* epilogue = nullptr);
CudaKernel four_bit_kernel(const Problem& problem, const FourBitConfig& config, const Target& target,
                           const RowEpilogue* epilogue = nullptr);

}  // namespace jf::grouped
