// What becomes of the sums of HopperContraction before they are stored: a functor that the compiler prints, as
// hopper_epilogue.cuh describes it, of one sum and no tile. Its rows are those of all matrices, one below the other,
// and it does not ask for groups. Sums of a group without rows are zeros, which nothing but this makes: a product under
// way would wait for what else writes its sums.
#pragma once

#include "grouped/cuda/hopper_contraction.cuh"

namespace jf::grouped {

template <class Epilogue>
struct ContractionEpilogue {
  static constexpr bool kOfNothing = true;
  static_assert(Epilogue::kSums == 1 && Epilogue::kTiles == 0, "an element is made of its own sum, and of memory");
  Epilogue epilogue;

  // This thread's sums of kColumns columns from `column` on, of 64 rows from `row` on. Rows and columns that do not
  // exist are others again: what they give is not stored.
  template <int kColumns>
  __device__ __forceinline__ void apply(float* sums, const GroupRows& rows, int row, int column, int k, int n) const {
    const auto of_group = epilogue.group(rows.group);
    const int first = row + static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long here = static_cast<long>(rows.group) * k + min(first + half * 8, k - 1);
      const auto of_row = epilogue.row(of_group, here);
#pragma unroll
      for (int i = 0; i < kColumns / 4; ++i) {
        const int at = min(column + i / 2 * 8, n - 8) + static_cast<int>(threadIdx.x % 4) * 2 + i % 2;
        float& sum = sums[i / 2 * 4 + half * 2 + i % 2];
        sum = epilogue.at(of_group, of_row, {rows.length == 0 ? 0 : sum}, 0, here, at);
      }
    }
  }
};

}  // namespace jf::grouped
