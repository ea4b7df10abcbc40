// The kernels that move rows by index where both sides of the relation are known: see move_rows.cuh.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/target.h"
#include "grouped/cuda/grouped_cuda.h"

namespace jf::grouped {

// x [sources, columns] -> [rows, columns]. Rows spread to where s32[sources, terms] says, which is the relation
// s32[rows, 1] seen from the other side; or those added up that s32[rows, terms] names, or taken that s32[rows, 1]
// does.
struct RowMove {
  enum class Kind { kSpread, kPlace, kAdd, kTake };  // rows of no source: as they are, or zeros

  DType dtype = DType::kBF16;
  Kind kind = Kind::kSpread;
  int64_t sources = 0, rows = 0, columns = 0, terms = 0;

  bool adds() const { return kind == Kind::kAdd; }
  bool spreads() const { return kind == Kind::kSpread || kind == Kind::kPlace; }
};

// "spread_rows", "place_rows", "add_rows", "take_rows"
std::string name(RowMove::Kind kind);

// Why no kernel takes it; empty where one does.
std::string why_not_move(const RowMove& move);

std::string print(const RowMove& move);

// Arguments: x, the indices (of rows that are spread those of the results first), the result, then move_scalars. Throws
// UserError with why_not_move.
CudaKernel move_kernel(const RowMove& move);
std::vector<int64_t> move_scalars(const RowMove& move);

}  // namespace jf::grouped
