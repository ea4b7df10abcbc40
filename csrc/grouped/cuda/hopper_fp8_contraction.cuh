// 8-bit floats in HopperContraction: out[g, r, c] = lhs_scale[g, r] * rhs_scale[g, c] * (lhs[r, :] * rhs[c, :]), summed
// over the places of g.
//
//   lhs [k, m], rhs [n, m]: the tensor cores take 8-bit operands along the summed axis alone. m a multiple of 16
//   extents   multiples of kStepRows, with zeros where a group has no more rows
//   scales    lhs_scale [groups, k], rhs_scale [groups, n], f32: applied to the finished sums
//   maps      lhs 2D {m, k}, rhs 2D {m, n}, box {kDepth, 64}; out as it is
#pragma once

#include "grouped/cuda/fp8.cuh"
#include "grouped/cuda/hopper_contraction.cuh"
#include "grouped/cuda/ptx_fp8.cuh"

namespace jf::grouped {

template <bool kLhsE5M2, bool kRhsE5M2>
struct ContractionOperands<Fp8<kLhsE5M2, kRhsE5M2>> {
  static constexpr int kDepth = 128, kStepRows = 32;
  static constexpr unsigned kStepBytes = kStepRows, kLeading = 16;

  static __device__ __forceinline__ void load(unsigned to, const TensorMap& map, unsigned barrier, int column,
                                              const GroupRows& rows, int row) {
    ptx::tile_load(to, &map, barrier, rows.begin + row, column);
  }
  template <int kWidth, int kSize>
  static __device__ __forceinline__ void run(float (&sums)[kSize], unsigned lhs, unsigned rhs, int add) {
    ptx::Wgmma8<kWidth>::template run<kLhsE5M2, kRhsE5M2>(sums, lhs, rhs, add);
  }
};

struct ContractionScales {
  static constexpr bool kOfNothing = false;
  const float* lhs;  // [groups, k]
  const float* rhs;  // [groups, n]

  // This thread's sums of kColumns columns from `column` on, of 64 rows from `row` on. Scales past the last are others
  // again: what they give is not stored.
  template <int kColumns>
  __device__ __forceinline__ void apply(float* sums, const GroupRows& rows, int row, int column, int k, int n) const {
    const float* of_rows = lhs + static_cast<long long>(rows.group) * k;
    const float* of_columns = rhs + static_cast<long long>(rows.group) * n;
    const int first = row + static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
    const float scales[2] = {__ldg(of_rows + min(first, k - 1)), __ldg(of_rows + min(first + 8, k - 1))};
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = column + i * 8 + static_cast<int>(threadIdx.x % 4) * 2 + j;
        const float scale = __ldg(of_columns + min(at, n - 1));
        sums[i * 4 + j] *= scale * scales[0];
        sums[i * 4 + 2 + j] *= scale * scales[1];
      }
    }
  }
};

}  // namespace jf::grouped
