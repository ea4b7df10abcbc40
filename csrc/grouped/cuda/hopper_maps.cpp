#include "grouped/cuda/hopper_kernel.h"

namespace jf::grouped::hopper {

runtime::TensorLayout matrices(int64_t count, int64_t rows, int64_t columns, DType dtype, int64_t box_rows) {
  const auto number = [](int64_t value) { return static_cast<uint64_t>(value); };
  const int64_t size = size_of(dtype);
  runtime::TensorLayout layout;
  layout.axes = count == 0 ? 2 : 3;
  layout.element_bytes = static_cast<int>(size);
  layout.extents = {number(columns), number(rows), number(count)};
  layout.stride_bytes = {number(size), number(columns * size), number(rows * columns * size)};
  layout.box = {static_cast<uint32_t>(columns_of_row(dtype)), static_cast<uint32_t>(box_rows), 1};
  layout.swizzle = kRowBytes;
  return layout;
}

namespace {

// An array [any, columns] that ends after any stretch of rows: of `length` rows from `begin`, (column, row) has the
// indices (column, 2^30 - length + row, 2^30, begin + length). What the second takes too far the last two bring back,
// but for a multiple of 2^64 bytes; and the second ends at 2^30, so that no row behind the stretch is read.
runtime::TensorLayout ragged(int64_t columns, DType dtype, int64_t box_rows) {
  constexpr uint64_t kAny = 0x7fff0000, kWrap = uint64_t{1} << 34;
  runtime::TensorLayout layout = matrices(0, kMostRaggedRows, columns, dtype, box_rows);
  const uint64_t row = layout.stride_bytes[1];
  layout.axes = 4;
  layout.extents[2] = layout.extents[3] = kAny;
  layout.stride_bytes[2] = kWrap * static_cast<uint64_t>(size_of(dtype)) - row;
  layout.stride_bytes[3] = row;
  layout.box[2] = layout.box[3] = 1;
  return layout;
}

// Rows of one store, and stores beside each other in the 64 columns of a warpgroup: see HopperStore.
int64_t stores_across(const Problem& p) { return size_of(p.out) / 2; }
int64_t store_rows(const Problem& p) { return kWarpgroupRows / stores_across(p); }

}  // namespace

std::vector<CudaMap> maps(const Problem& p, const RowEpilogue* epilogue) {
  const int out = out_argument(p);
  if (p.mode == Mode::kContraction && p.scales != Scales::kNone) {
    return {{0, matrices(0, p.k, p.m, p.lhs, kWarpgroupRows)},
            {1, matrices(0, p.n, p.m, p.rhs, kWarpgroupRows)},
            {out, matrices(p.groups, p.k, p.n, p.out, kWarpgroupRows)}};
  }
  if (p.mode == Mode::kContraction) {
    return {{0, ragged(p.k, p.lhs, depth(p))},
            {1, ragged(p.n, p.rhs, depth(p))},
            {out, matrices(p.groups, p.k, p.n, p.out, kWarpgroupRows)}};
  }
  const bool blocks = p.scales == Scales::kBlocks;
  const int64_t rhs_rows = blocks ? kWarpgroupRows : kRowsColumns / (epilogue ? epilogue->sums : 1);
  const runtime::TensorLayout rhs =
      p.transpose_rhs ? matrices(p.groups, p.n, p.k, p.rhs, rhs_rows) : matrices(p.groups, p.k, p.n, p.rhs, depth(p));
  std::vector<CudaMap> maps{{1, rhs}};
  if (p.lhs_rows == 0) maps.insert(maps.begin(), {0, matrices(0, p.m, p.k, p.lhs, kWarpgroupRows)});
  const bool several = epilogue && epilogue->several();
  const int members = out + 2;
  if (p.quantizes != OutputFormat::kNone) {
    // Threads store it.
  } else if (several) {
    for (size_t i = 0; i < epilogue->results.size(); ++i) {
      const RowEpilogue::Result& result = epilogue->results[i];
      maps.push_back({i == 0 ? out : members + static_cast<int>(epilogue->members.size() + i) - 1,
                      matrices(0, p.m, result.columns, p.out, kPieceRows)});
      // A copy ends where the result does, and does not go on into what lies beside it.
      maps.back().layout.extents[0] = static_cast<uint64_t>(result.first + epilogue->n);
    }
  } else {
    const int64_t rows = blocks ? kWarpgroupRows : store_rows(p);
    maps.push_back({out, matrices(0, p.m, result_columns(p, epilogue), p.out, rows)});
  }
  for (size_t i = 0; epilogue && i < epilogue->tiles.size(); ++i) {
    const RowEpilogue::Tile& tile = epilogue->tiles[i];
    maps.push_back(
        {members + tile.member, matrices(0, p.m, tile.columns, tile.dtype, several ? kPieceRows : kWarpgroupRows)});
  }
  return maps;
}

}  // namespace jf::grouped::hopper
