// What the choice of a Hopper kernel, its text and its tensor maps have in common: sizes of the kernels' tiles and
// stages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/integers.h"
#include "grouped/cuda/hopper.h"

namespace jf::grouped::hopper {

inline constexpr int kThreads = 384;
inline constexpr int kRowBytes = 128;                // of every box: the span of the swizzle
inline constexpr int kSharedAlign = 1024;            // of the kernels' structs
inline constexpr int kWarpgroupRows = 64;            // of one product
inline constexpr int kRowsColumns = 128;             // of a warpgroup of HopperRows
inline constexpr int kSharedColumns = 256;           // of a tile of HopperRows whose warpgroups compute the same rows
inline constexpr int64_t kPieceRows = 32;            // of a piece of HopperSeveral, of 64 columns like all
inline constexpr int64_t kMostRaggedRows = 1 << 30;  // of the maps that end with a group
// Of a size: with a tile more, or what a box begins outside of an array, it is a 32-bit index.
inline constexpr int64_t kMostIndex = (int64_t{1} << 31) - (1 << 16);

inline int64_t columns_of_row(DType dtype) { return kRowBytes / size_of(dtype); }
inline int64_t depth(const Problem& p) { return columns_of_row(p.lhs); }  // contraction indices of a stage
inline int64_t order_groups(const Problem& p) { return round_up(p.groups, 64); }

// Whether the kernel leaves to the launch how many blocks share k, and has room for their sums.
bool splits_k(const Problem& problem, const HopperConfig& config);

// `epilogue` may be null, here and below.
inline int64_t result_columns(const Problem& p, const RowEpilogue* epilogue) { return epilogue ? epilogue->n : p.n; }

// [count, rows, columns] with boxes of so many rows of kRowBytes; without `count` two axes.
runtime::TensorLayout matrices(int64_t count, int64_t rows, int64_t columns, DType dtype, int64_t box_rows);

// In the order of the kernel's parameters.
std::vector<CudaMap> maps(const Problem& problem, const RowEpilogue* epilogue);

// The translation unit: the epilogue's text, the kernel's class and the entry that runs it.
std::string text(const Problem& problem, const HopperConfig& config, std::string_view entry, int64_t shared_bytes,
                 const RowEpilogue* epilogue);

}  // namespace jf::grouped::hopper
