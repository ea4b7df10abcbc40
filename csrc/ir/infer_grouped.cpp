// Ragged matrix products.
#include <utility>

#include "base/integers.h"
#include "ir/inference.h"

namespace jf::ir {

Value Inference::grouped(const Value& stated) const {
  const Grouped& g = get<Grouped>("mode=...");
  const bool numbers = g.weights == GroupedWeights::kNumbers;
  const bool scaled = g.scales != GroupedScales::kNone;
  JF_REQUIRE(scaled == is_float8(in(0).dtype) && scaled == is_float8(in(1).dtype),
             "[grouped_matmul] 8-bit floats need scales, and only they have any, got ", type(0), " and ", type(1));
  JF_REQUIRE(scaled || !numbers || in(0).dtype == in(1).dtype, "[grouped_matmul] lhs and rhs must have one dtype, got ",
             type(0), " and ", type(1));
  const size_t indices = inputs.size() - (scaled ? 2 : numbers ? 0 : 1);
  JF_REQUIRE(indices == 3 || indices == 4, "[grouped_matmul] expected lhs, rhs, extents[, starts]",
             scaled    ? ", scales of lhs, scales of rhs"
             : numbers ? ""
                       : ", factors",
             ", got ", inputs.size(), " operands");
  for (size_t i = 2; i < indices; ++i) {
    JF_REQUIRE(in(i).dtype == DType::kS32 && in(i).axes.size() == 1, "[grouped_matmul] ", i == 2 ? "extents" : "starts",
               " must be s32[groups], got ", type(i));
    JF_REQUIRE(shape(in(i)) == shape(in(2)), "[grouped_matmul] starts must have the shape of extents, got ", type(3));
  }
  if (!numbers) return packed_weights(g, stated);
  const std::vector<int64_t> a = shape(in(0)), b = shape(in(1));
  const int64_t groups = in(2).axes[0].extent;
  const bool rank_ok = g.mode == GroupedMode::kRows          ? a.size() == 2 && b.size() == 3
                       : g.mode == GroupedMode::kContraction ? a.size() == 2 && b.size() == 2
                                                             : a.size() == 3 && b.size() == 3;
  JF_REQUIRE(rank_ok, "[grouped_matmul] ranks do not fit the mode: lhs ", type(0), ", rhs ", type(1));
  const int64_t k = b.size() == 3 ? b[g.transpose_rhs ? 2 : 1] : 0, n = b.back();
  JF_REQUIRE(!g.leaves_padding || g.mode == GroupedMode::kRows,
             "[grouped_matmul] leaves_padding is for mode=rows, whose result has rows of no group");
  Value result{"", stated.dtype, {}};
  const int64_t columns = b.size() == 3 && g.transpose_rhs ? b[1] : n;
  if (scaled) {
    JF_REQUIRE(is_float(stated.dtype) && !is_float8(stated.dtype),
               "[grouped_matmul] 8-bit floats need a wider float as the result, got ", name(stated.dtype));
    check_scales(g, in(indices), in(indices + 1));
  }
  switch (g.mode) {
    case GroupedMode::kRows:
      JF_REQUIRE(b[0] == groups, "[grouped_matmul] rhs has ", b[0], " groups but extents has ", groups);
      JF_REQUIRE(a[1] == k, "[grouped_matmul] lhs ", type(0), " and rhs ", type(1), " differ in the contracted axis");
      result.axes = {{a[0]}, {columns}};
      break;
    case GroupedMode::kContraction:
      JF_REQUIRE(!g.transpose_rhs, "[grouped_matmul] transpose_rhs does not apply to mode contraction");
      JF_REQUIRE(a[scaled] == b[scaled], "[grouped_matmul] lhs ", type(0), " and rhs ", type(1), " differ in rows");
      result.axes = {{groups}, {a[!scaled]}, {b[!scaled]}};
      break;
    case GroupedMode::kBatch:
      JF_REQUIRE(a[0] == b[0] && a[2] == k, "[grouped_matmul] lhs ", type(0), " and rhs ", type(1), " do not fit");
      result.axes = {{a[0]}, {a[1]}, {columns}};
      break;
  }
  return result;
}

// Shapes as in grouped/problem.h.
void Inference::check_scales(const Grouped& g, const Value& of_lhs, const Value& of_rhs) const {
  const std::vector<int64_t> a = shape(in(0)), b = shape(in(1));
  const int64_t groups = in(2).axes[0].extent;
  const bool rows = g.scales == GroupedScales::kRows;
  const auto blocks = [](int64_t size) { return divide_up(size, kScaleBlock); };
  std::vector<int64_t> left, right;
  if (g.mode == GroupedMode::kRows && g.transpose_rhs) {
    left = rows ? std::vector{a[0]} : std::vector{a[0], blocks(b[2])};
    right = rows ? std::vector{groups, b[1]} : std::vector{groups, blocks(b[1]), blocks(b[2])};
  } else {
    JF_REQUIRE(g.mode == GroupedMode::kContraction && rows,
               "[grouped_matmul] 8-bit floats need mode=rows transpose_rhs, or mode=contraction scaled_rows");
    left = {groups, a[0]}, right = {groups, b[0]};
  }
  JF_REQUIRE(
      of_lhs.dtype == DType::kF32 && of_rhs.dtype == DType::kF32 && shape(of_lhs) == left && shape(of_rhs) == right,
      "[grouped_matmul] scales must be f32 for each ", rows ? "row and column" : "block of 128", ", got ",
      print_type(fusion, of_lhs), " and ", print_type(fusion, of_rhs));
}

// rhs [groups, columns / 64, k / 64, words of a piece]: codes and scales, see grouped/cuda/four_bit.cuh. Without
// transpose_rhs k and columns change places.
Value Inference::packed_weights(const Grouped& g, const Value& stated) const {
  constexpr int64_t kSide = 64;
  const bool two_words = g.weights == GroupedWeights::kNvfp4 || g.weights == GroupedWeights::kInt4By32;
  const int64_t words = kSide * kSide / 8 + (two_words ? 2 : 1) * kSide / 2, groups = in(2).axes[0].extent;
  const std::vector<int64_t> a = shape(in(0));
  JF_REQUIRE(g.mode == GroupedMode::kRows && a.size() == 2 && in(0).dtype == DType::kBF16, "[grouped_matmul] weights ",
             name(g.weights), " need mode rows and lhs bf16[m, k], got ", type(0));
  JF_REQUIRE(g.columns >= 0, "[grouped_matmul] columns must not be negative, got ", g.columns);
  int64_t down = divide_up(g.columns, kSide), across = divide_up(a[1], kSide);
  if (!g.transpose_rhs) std::swap(down, across);
  const std::vector<int64_t> expected = {groups, down, across, words};
  JF_REQUIRE(in(1).dtype == DType::kU32 && shape(in(1)) == expected, "[grouped_matmul] expected weights ",
             name(g.weights), " as u32[", expected[0], ",", expected[1], ",", expected[2], ",", expected[3], "], got ",
             type(1), "; repack_weights of this version makes them");
  const Value& factors = in(inputs.size() - 1);
  JF_REQUIRE(factors.dtype == DType::kF32 && shape(factors) == std::vector<int64_t>{groups},
             "[grouped_matmul] factors of weights must be f32[", groups, "], got ", type(inputs.size() - 1));
  return {"", stated.dtype, {{a[0]}, {g.columns}}};
}

}  // namespace jf::ir
