// 8-bit floats in HopperRows: out[r, c] = row_scale[r] * column_scale[group of r, c] * (lhs[r, :] * rhs[group of r]).
//
//   lhs [m, k], rhs [groups, n, k]; k a multiple of 16 and n of 16 bytes of out; boxes of maps are 128 elements wide
//   scales    row_scale [m], column_scale [groups, n], f32: applied to the finished sums
#pragma once

#include "grouped/cuda/fp8.cuh"
#include "grouped/cuda/hopper_rows.cuh"
#include "grouped/cuda/ptx_fp8.cuh"

namespace jf::grouped {

template <bool kLhsE5M2, bool kRhsE5M2>
struct HopperProduct<Fp8<kLhsE5M2, kRhsE5M2>> {
  template <int kCount, bool kRhsKMajor, int kSize>
  static __device__ __forceinline__ void run(float (&sums)[kSize], unsigned rhs, unsigned lhs, int add) {
    static_assert(kRhsKMajor, "the instruction takes 8-bit operands K-major alone");
    ptx::Wgmma8<kCount>::template run<kRhsE5M2, kLhsE5M2>(sums, rhs, lhs, add);
  }
  // With rows of lhs as rows of the instruction.
  template <int kCount, int kSize>
  static __device__ __forceinline__ void run_rows(float (&sums)[kSize], unsigned lhs, unsigned rhs, int add) {
    ptx::Wgmma8<kCount>::template run<kLhsE5M2, kRhsE5M2>(sums, lhs, rhs, add);
  }
};

// An epilogue: see hopper_epilogue.cuh.
struct RowColumnScales {
  static constexpr int kSums = 1, kTiles = 0;
  const float* rows;     // [m]
  const float* columns;  // [groups, n]
  int n;

  struct Group {
    const float* columns;
  };
  struct alignas(4) Row {
    float scale;
  };
  __device__ __forceinline__ Group group(int group) const { return {columns + static_cast<long long>(group) * n}; }
  __device__ __forceinline__ Row row(const Group&, int row) const { return {__ldg(rows + row)}; }
  __device__ __forceinline__ float at(const Group& group, const Row& row, const float (&sums)[1], float, int,
                                      int column) const {
    return sums[0] * row.scale * __ldg(group.columns + column);
  }
};

// The scale of a padding row may be anything.
template <>
constexpr bool kZeroPadding<RowColumnScales> = true;

}  // namespace jf::grouped
