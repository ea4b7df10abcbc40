// The kernels that move rows by index where both sides of the relation are known: see move_rows.cuh.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/target.h"
#include "grouped/cuda/grouped_cuda.h"

namespace jf::grouped {

// x [sources, columns] -> [rows, columns]. Rows spread to where s32[sources, terms] says, other results left as they
// are; or with `adds` those added up that s32[rows, terms] names.
struct RowMove {
  DType dtype = DType::kBF16;
  bool adds = false;
  int64_t sources = 0, rows = 0, columns = 0, terms = 0;
};

// Why no kernel takes it; empty where one does.
std::string why_not_move(const RowMove& move);

// "add rows", "spread rows"
std::string print(const RowMove& move);

// Arguments: x, the indices (of rows that are spread those of the results first, which it does not read), the result,
// then move_scalars. Throws UserError with why_not_move.
CudaKernel move_kernel(const RowMove& move);
std::vector<int64_t> move_scalars(const RowMove& move);

}  // namespace jf::grouped
