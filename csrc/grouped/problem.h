// A grouped matrix product: what is multiplied, in which of the three ragged modes. Plain data, shared by every kernel.
//
//   mode          lhs                    rhs                              out         ragged axis
//   kRows         [m, k]                 [groups, k, n] or [groups, n, k] [m, n]      rows of lhs and out
//   kContraction  [m, k]                 [m, n]                           [groups, k, n]   rows of lhs and rhs (summed)
//   kBatch        [m, rows, k]           [m, k, n] or [m, n, k]           [m, rows, n]     the batch axis m
//
// `extents[g]` rows belong to group g, starting at `starts[g]` (ascending, those of empty groups too), or at the sum of
// the earlier extents when the problem has no starts. Rows of no group are padding: never read, zero in the result,
// unless the problem leaves it. An empty group gives exact zeros in kContraction. Extents live on the device; kernels
// clamp every start and extent to [0, m].
//
// 8-bit floats (kRows with transpose_rhs, kContraction with kRows) come with scales in f32, by which their elements are
// multiplied:
//   scales                of lhs                of rhs
//   kRows                 [m]                   [groups, n]
//   kBlocks               [m, blocks of k]      [groups, blocks of n, blocks of k]
//   kRows, kContraction   [groups, k]           [groups, n]
// Blocks are of 128, the last may be shorter. kContraction takes operands that are transposed, [k, m] and [n, m], and
// extents that are multiples of 32: groups are filled up with zeros.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "grouped/output_format.h"

namespace jf::grouped {

enum class Mode : uint8_t { kRows, kContraction, kBatch };
enum class Scales : uint8_t { kNone, kRows, kBlocks };

// What rhs holds: numbers, or for kRows u32 pieces of codes of four bits with their scales, in the order of
// cuda/four_bit.cuh, of bf16 weights [groups, n, k] (transpose_rhs) or [groups, k, n], whose columns are then summed
// over; and an f32[groups] of what they are multiplied by. Scales of int4 belong to 32 or 64 weights.
enum class Weights : uint8_t { kNumbers, kMxfp4, kNvfp4, kInt4By32, kInt4By64 };

struct Problem {
  Mode mode = Mode::kRows;
  int64_t groups = 0;  // entries of extents
  int64_t m = 0;       // capacity of the ragged axis
  int64_t k = 0;
  int64_t n = 0;
  int64_t rows = 1;            // kBatch only: dense rows of each batch entry
  bool transpose_rhs = false;  // kRows and kBatch: rhs is [.., n, k]
  bool has_starts = false;
  Scales scales = Scales::kNone;
  DType lhs = DType::kF32;
  DType rhs = DType::kF32;
  DType out = DType::kF32;
  Weights weights = Weights::kNumbers;
  bool leaves_padding = false;  // kRows: padding may be left as it is
  // kRows, for the CUDA kernels that why_not_gather allows: where an s32[m] says which row of lhs, [lhs_rows, k], each
  // row is, or is outside of it for a row of zeros. Else 0.
  int64_t lhs_rows = 0;
  // kRows, for the CUDA kernels that why_not_quantize allows: what the result, rounded to `out`, becomes: elements
  // [m, n] and scales [m, n / columns of one], an argument that follows the members of an epilogue.
  OutputFormat quantizes = OutputFormat::kNone;

  bool operator==(const Problem&) const = default;
};

// Of a kernel's arguments: lhs, rhs, extents, then starts, scales or factors and numbers of rows if there are any, then
// the result.
constexpr int out_argument(const Problem& p) {
  return 3 + (p.has_starts ? 1 : 0) + (p.scales == Scales::kNone ? 0 : 2) + (p.weights == Weights::kNumbers ? 0 : 1) +
         (p.lhs_rows == 0 ? 0 : 1);
}

}  // namespace jf::grouped
