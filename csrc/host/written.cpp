#include "host/written.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"
#include "ir/text.h"

namespace jf::host {
namespace {

void check_type(const ir::Fusion& fusion, size_t output, const char* what, const ir::Value& expected) {
  const ir::Value& value = fusion.values[fusion.outputs[output]];
  JF_REQUIRE(value.dtype == expected.dtype && ir::shape(value) == ir::shape(expected), "[quantize] expected ", what,
             " ", ir::print_type(expected), ", got\n", ir::print(fusion));
}

// A fusion of matrices [matrices, rows, columns] that gives their elements as f8e4m3fn, and the scales.
grouped::Quantization quantization(const ir::Fusion& fusion, std::string_view line) {
  const auto value = [&](ir::ValueId id) { return fusion.values[id]; };
  const bool fits = fusion.inputs.size() == 1 && fusion.outputs.size() == 2 && value(fusion.inputs[0]).axes.size() == 3;
  JF_REQUIRE(fits, "[quantize] expected matrices that become elements and scales, got\n", ir::print(fusion));
  const std::vector<int64_t> shape = ir::shape(value(fusion.inputs[0]));
  grouped::Quantization q{value(fusion.inputs[0]).dtype, shape[0], shape[1], shape[2]};
  q.of_columns = line.starts_with("quantize columns=1 ");
  q.transpose = line.ends_with(" transpose=1\n");
  JF_REQUIRE(line == cat("quantize columns=", q.of_columns, " transpose=", q.transpose, "\n"),
             "[quantize] expected columns=0 or 1, then transpose=0 or 1, got ", line);
  JF_REQUIRE(q.transpose || !q.of_columns, "[quantize] columns=1 needs transpose=1");
  const int64_t lines = q.transpose ? q.columns : q.rows;
  check_type(fusion, 0, "elements", {"", DType::kF8E4M3, {{q.matrices}, {lines}, {q.pitch()}}});
  std::vector<ir::Axis> scales = {{q.matrices}, {q.columns}};
  if (!q.of_columns) {
    scales = {{q.matrices}, {divide_up(lines, grouped::kScaleBlock)}, {divide_up(q.pitch(), grouped::kScaleBlock)}};
  }
  check_type(fusion, 1, "scales", {"", DType::kF32, scales});
  return q;
}

// A fusion of rows [rows, columns], the row and the group of each place, and inverses [groups, columns], which gives
// f8e4m3fn elements [columns, places].
grouped::GroupQuantization group_quantization(const ir::Fusion& fusion) {
  const auto is = [&](ir::ValueId id, DType dtype, size_t axes) {
    return fusion.values[id].dtype == dtype && fusion.values[id].axes.size() == axes;
  };
  const auto& in = fusion.inputs;
  bool fits = in.size() == 4 && fusion.outputs.size() == 1 && fusion.values[in[0]].axes.size() == 2 &&
              is(in[1], DType::kS32, 1) && is(in[2], DType::kS32, 1) && is(in[3], DType::kF32, 2) &&
              is(fusion.outputs[0], DType::kF8E4M3, 2);
  grouped::GroupQuantization q;
  if (fits) {
    const auto shape = [&](ir::ValueId id) { return ir::shape(fusion.values[id]); };
    q = {fusion.values[in[0]].dtype, shape(in[0])[0], shape(in[0])[1], shape(in[3])[0], shape(in[1])[0]};
    fits = shape(in[2])[0] == q.places && shape(in[3])[1] == q.columns &&
           shape(fusion.outputs[0]) == std::vector{q.columns, q.places};
  }
  JF_REQUIRE(fits,
             "[quantize_groups] expected rows, s32 row and group of each place and f32 inverses of scales that become "
             "f8e4m3fn columns, got\n",
             ir::print(fusion));
  return q;
}

// A fusion of rows [sources, ..] and s32 indices [rows, terms] that gives [rows, ..]. One that spreads them has the
// same relation from the other side behind, s32 [sources, uses].
grouped::RowMove row_move(const ir::Fusion& fusion, grouped::RowMove::Kind kind) {
  const bool adds = kind == grouped::RowMove::Kind::kAdd;
  const auto& in = fusion.inputs;
  const auto shape = [&](ir::ValueId id) { return ir::shape(fusion.values[id]); };
  const auto is_index = [&](ir::ValueId id) {
    return fusion.values[id].dtype == DType::kS32 && fusion.values[id].axes.size() == 2;
  };
  bool fits = in.size() == (adds ? 2 : 3) && fusion.outputs.size() == 1 && !shape(in[0]).empty() &&
              std::all_of(in.begin() + 1, in.end(), is_index);
  grouped::RowMove move;
  if (fits) {
    std::vector<int64_t> result = shape(in[0]);
    move = {fusion.values[in[0]].dtype, kind, result[0], shape(in[1])[0], 1, shape(in.back())[1]};
    for (size_t i = 1; i < result.size(); ++i) move.columns *= result[i];
    result[0] = move.rows;
    fits = shape(fusion.outputs[0]) == result && fusion.values[fusion.outputs[0]].dtype == move.dtype &&
           (adds || (shape(in[1])[1] == 1 && shape(in[2])[0] == move.sources));
  }
  JF_REQUIRE(fits, "[move_rows] expected rows that s32 indices move, got\n", ir::print(fusion));
  return move;
}

std::vector<int64_t> scalars(const grouped::Quantization& q) { return {q.rows, q.columns, q.pitch()}; }
std::vector<int64_t> scalars(const grouped::GroupQuantization& q) { return {q.rows, q.columns, q.places}; }
std::string describe(const grouped::Quantization& q, const Target& target) {
  return grouped::print(grouped::choose_quantize(q, target));
}
std::string describe(const grouped::GroupQuantization& q, const Target&) { return grouped::print(q); }
std::vector<int64_t> scalars(const grouped::RowMove& move) { return grouped::move_scalars(move); }
std::string describe(const grouped::RowMove& move, const Target&) { return grouped::print(move); }

template <class Q>
grouped::CudaKernel kernel(const Q& q, const Target& target) {
  return grouped::quantize_kernel(q, target);
}
grouped::CudaKernel kernel(const grouped::RowMove& move, const Target&) { return grouped::move_kernel(move); }

}  // namespace

Written parse_written(const ir::Fusion& fusion, std::string_view line) {
  const std::string_view name = line.substr(0, line.find_first_of(" \n"));
  if (name == "quantize") return quantization(fusion, line);
  using Kind = grouped::RowMove::Kind;
  for (const Kind kind : {Kind::kSpread, Kind::kPlace, Kind::kAdd}) {
    if (name == grouped::name(kind)) return row_move(fusion, kind);
  }
  JF_REQUIRE(name == "quantize_groups",
             "[kernel] expected quantize, quantize_groups, spread_rows, place_rows or add_rows, got ", name);
  return group_quantization(fusion);
}

WrittenStep written_step(const ir::Fusion& fusion, const Written& written, const Target& target,
                         std::vector<BufferRef> buffers, std::string& parameters) {
  return std::visit(
      [&](const auto& q) {
        WrittenStep step{fusion.name, kernel(q, target), scalars(q), std::move(buffers)};
        parameters = describe(q, target);
        return step;
      },
      written);
}

}  // namespace jf::host
