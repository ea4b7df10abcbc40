// The kernel of an Op (multiply.h) for each type that it reads and stores. Included after Machine (vectors.h).
#pragma once

#include "grouped/cpu/few_rows.h"
#include "grouped/cpu/multiply.h"

namespace jf::grouped::cpu {
namespace {

template <class Op, class In, class Out>
constexpr Kernel make_kernel() {
  Kernel kernel;
  kernel.tile_rows = Op::kTileRows;
  kernel.tile_columns = kTileColumns<Op>;
  kernel.row_granule = Op::kRowGranule;
  kernel.depth_granule = Op::kDepthGranule;
  kernel.packed_bytes = kElementBytes<Op>;
  kernel.accumulator_bytes = sizeof(typename Op::Sum);
  if constexpr (requires { &Op::pack_lhs; }) {
    kernel.pack_lhs = Op::pack_lhs;
  } else {
    kernel.pack_lhs = pack<Op, In, Op::kTileRows, Op::kRowGranule>;
  }
  kernel.pack_rhs = pack<Op, In, kTileColumns<Op>, kTileColumns<Op>>;
  if constexpr (requires { Op::template multiply<Out>; }) {
    kernel.multiply = Op::template multiply<Out>;
    kernel.rhs_bytes = Op::kRhsBytes;
    kernel.most_sum_bytes = Op::kMostSumBytes;
  } else {
    kernel.multiply = multiply<Op, Out>;
  }
  if constexpr (can_few_rows<Op>) {
    kernel.multiply_few_rows = multiply_few_rows<Op, In, Out>;
    kernel.most_few_rows = kMostFewRows<Op>;
  }
  kernel.fill_zero = fill_zero;
  return kernel;
}

template <class Op, class In, class Out>
constexpr Kernel kKernel = make_kernel<Op, In, Out>();

// The kernel of Op for these dtypes of up to 32 bits.
template <class Op, class In>
const Kernel* kernel_into(DType out) {
  switch (out) {
    case DType::kF32: return &kKernel<Op, In, float>;
    case DType::kF16: return &kKernel<Op, In, Half>;
    case DType::kBF16: return &kKernel<Op, In, Brain>;
    default: return nullptr;
  }
}

// Multiply-add in f32 for floats of up to 32 bits, in f64 for f64.
inline const Kernel* fma_kernel(DType in, DType out) {
  switch (in) {
    case DType::kF32: return kernel_into<FmaOp<float>, float>(out);
    case DType::kF16: return kernel_into<FmaOp<float>, Half>(out);
    case DType::kBF16: return kernel_into<FmaOp<float>, Brain>(out);
    case DType::kF64: return out == DType::kF64 ? &kKernel<FmaOp<double>, double, double> : nullptr;
    default: return nullptr;
  }
}

}  // namespace
}  // namespace jf::grouped::cpu
