// What one instruction set offers to the driver: pack both operands into panels, multiply packed blocks.
//
// A panel is `tile_rows` rows of lhs (or `tile_columns` columns of rhs) by the whole depth, stored depth-major, so that
// the innermost loop reads both operands at unit stride. `depth` is the summed axis. All padding inside panels is zero,
// on both sides, so that a NaN never meets it.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/target.h"

namespace jf::grouped::cpu {

struct PackArguments {
  const void* source = nullptr;   // element (0, 0)
  int64_t stride = 0;             // elements between two lines of the source
  bool depth_contiguous = false;  // the source is [width, depth], otherwise [depth, width]
  int64_t width = 0;              // rows of lhs or columns of rhs
  int64_t depth_begin = 0;        // part of the depth axis to pack; begins at a multiple of depth_granule
  int64_t depth_end = 0;
  int64_t packed_depth = 0;  // depth of a whole panel, a multiple of depth_granule
  void* packed = nullptr;    // first panel
};

// Memory that the next pack_rhs reads: `lines` pieces of `line_bytes`.
struct NextSource {
  const void* begin = nullptr;
  int64_t lines = 0;
  int64_t line_bytes = 0;
  int64_t stride_bytes = 0;
};

struct MultiplyArguments {
  const void* lhs = nullptr;  // first panel, at depth 0
  int64_t lhs_depth = 0;      // depth of a whole lhs panel
  int64_t depth_begin = 0;    // where this block begins in the lhs panels
  const void* rhs = nullptr;  // first panel of this block
  int64_t depth = 0;          // of this block and of its rhs panels, a multiple of depth_granule
  int64_t rows = 0;
  int64_t columns = 0;
  void* accumulators = nullptr;  // one tile after another; used unless the block is first and last
  bool first = false;            // sums start at zero
  bool last = false;             // sums go to `out`, otherwise to the accumulators
  void* out = nullptr;
  int64_t out_stride = 0;  // elements
  bool stream = false;     // past the caches; out and its rows lie at multiples of 64 bytes
  NextSource next;         // to prefetch meanwhile
};

// One panel of lhs, and rhs as it lies in memory, [depth, columns].
struct FewRowsArguments {
  const void* lhs = nullptr;
  int64_t rows = 0;
  const void* rhs = nullptr;
  int64_t stride = 0;  // elements between two lines of rhs
  int64_t depth = 0;
  int64_t columns = 0;
  void* accumulators = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;  // elements
  bool stream = false;     // as in MultiplyArguments
};

struct Kernel {
  int tile_rows = 0;
  int tile_columns = 0;
  int row_granule = 0;        // the last lhs panel is padded to a multiple of this; rhs panels are always whole
  int depth_granule = 0;      // elements of depth that are packed together
  int packed_bytes = 0;       // of one packed element
  int accumulator_bytes = 0;  // of one sum
  int most_few_rows = 0;      // that multiply_few_rows takes
  // Of a block of rhs, and of the sums of a task whose depth is in several blocks: together they leave room for lhs
  // panels in 1 MiB of level-2 cache. Between half and twice these the speed is the same.
  int64_t rhs_bytes = 256 << 10;
  int64_t most_sum_bytes = 320 << 10;
  void (*pack_lhs)(const PackArguments&) = nullptr;
  void (*pack_rhs)(const PackArguments&) = nullptr;
  void (*multiply)(const MultiplyArguments&) = nullptr;
  void (*multiply_few_rows)(const FewRowsArguments&) = nullptr;
  void (*fill_zero)(void* out, int64_t bytes, bool stream) = nullptr;
};

// One per instruction set, null where it has no kernel of its own for these dtypes.
const Kernel* portable_kernel(DType in, DType out);
const Kernel* avx2_kernel(DType in, DType out);
const Kernel* avx512_kernel(DType in, DType out);
const Kernel* avx512bf16_kernel(DType in, DType out);
const Kernel* amx_kernel(DType in, DType out);

// The best kernel that `isa` may use. Throws UserError when no instruction set has one.
const Kernel& find_kernel(Isa isa, DType in, DType out);

}  // namespace jf::grouped::cpu
