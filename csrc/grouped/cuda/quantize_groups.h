// The kernel that stores rows of groups as 8-bit floats with scales, transposed: compute capability 9.0 alone, as the
// product that takes them.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/target.h"
#include "grouped/cuda/grouped_cuda.h"

namespace jf::grouped {

// x [rows, columns], rows and groups of the places, inverses of the scales [groups, columns] -> [columns, places]
struct GroupQuantization {
  DType in = DType::kBF16;
  int64_t rows = 0, columns = 0, groups = 0, places = 0;
};

// Why the kernel does not take them; empty where it does.
std::string why_not_quantize(const GroupQuantization& q, const Target& target);

// "quantize groups tile=128x64"
std::string print(const GroupQuantization& q);

// Arguments: the four arrays, the result, then rows, columns, places. Throws UserError with why_not_quantize.
CudaKernel quantize_kernel(const GroupQuantization& q, const Target& target);

}  // namespace jf::grouped
