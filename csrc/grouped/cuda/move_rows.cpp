#include "grouped/cuda/move_rows.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"

namespace jf::grouped {
namespace {

// As in move_rows.cuh.
constexpr int kMoveThreads = 128;
constexpr int64_t kVectorBytes = 16;
constexpr int64_t kMaxBlocks = INT32_MAX;
int64_t vectors_of_lane(const RowMove& move) { return move.spreads() ? 8 : 4; }
constexpr int64_t kFewestBytes = 512;  // of a row: a warp has one at a time

int64_t row_bytes(const RowMove& move) { return move.columns * size_of(move.dtype); }

std::string kernel(const RowMove& move) {
  if (move.adds()) return cat("AddRows<", device_type(move.dtype), ">");
  if (!move.spreads()) return "TakeRows";
  return move.kind == RowMove::Kind::kPlace ? "SpreadRows<true>" : "SpreadRows<false>";
}

std::string text(const RowMove& move, std::string_view entry) {
  std::string s = "#include \"grouped/cuda/move_rows.cuh\"\n\n";
  s += cat("using Kernel = jf::", kernel(move), ";\n");
  s += cat("static_assert(Kernel::kThreads == ", kMoveThreads, " && Kernel::kVectors == ", vectors_of_lane(move),
           ", \"the launch fits\");\n\n");
  s += cat("extern \"C\" __global__ __launch_bounds__(Kernel::kThreads, Kernel::kBlocks) void ", entry,
           "(\n    const uint4* __restrict__ x, ", move.spreads() ? "const int* __restrict__ take, " : "",
           "const int* __restrict__ index, uint4* __restrict__ out,\n");
  s += "    long long sources, long long rows, long long vectors, long long terms) {\n";
  s += cat("  Kernel::run({x, ", move.spreads() ? "take, " : "",
           "index, out, sources, rows, vectors, int(terms)});\n}\n");
  return s;
}

}  // namespace

std::string why_not_move(const RowMove& move) {
  const bool is_sum = move.dtype == DType::kBF16 || move.dtype == DType::kF16 || move.dtype == DType::kF32;
  if (move.adds() && !is_sum) return cat("it adds no ", jf::name(move.dtype));
  if (move.sources == 0 || move.rows == 0 || move.terms == 0) return "an operand is empty";
  if (const int64_t bytes = row_bytes(move); bytes % kVectorBytes != 0 || bytes < kFewestBytes) {
    return cat("rows of ", bytes, " bytes, it takes multiples of ", kVectorBytes, " from ", kFewestBytes, " on");
  }
  if (std::max({move.sources, move.rows, move.terms}) > INT32_MAX) return "it has 32-bit indices";
  return "";
}

std::string name(RowMove::Kind kind) {
  if (kind == RowMove::Kind::kAdd) return "add_rows";
  if (kind == RowMove::Kind::kTake) return "take_rows";
  return kind == RowMove::Kind::kPlace ? "place_rows" : "spread_rows";
}

std::string print(const RowMove& move) {
  std::string words = name(move.kind);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

CudaKernel move_kernel(const RowMove& move) {
  const std::string why = why_not_move(move);
  JF_REQUIRE(why.empty(), "[move_rows] ", why);
  CudaKernel kernel;
  kernel.entry = cat("jf_", name(move.kind));
  kernel.instantiation = text(move, kernel.entry);
  kernel.block = kMoveThreads;
  // A warp for each piece: blocks that follow each other keep the memory busier than those that stay.
  const int64_t pieces = divide_up(row_bytes(move), kVectorBytes * 32 * vectors_of_lane(move));
  const int64_t read = move.spreads() ? move.sources : move.rows;
  kernel.grid = std::min(divide_up(read * pieces, kMoveThreads / 32), kMaxBlocks);
  return kernel;
}

std::vector<int64_t> move_scalars(const RowMove& move) {
  return {move.sources, move.rows, row_bytes(move) / kVectorBytes, move.terms};
}

}  // namespace jf::grouped
