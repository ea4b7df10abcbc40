#include "plan/ragged_gaps.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/lists.h"
#include "ir/build.h"

namespace jf::plan {
namespace {

// Three small kernels take as long as storing so many bytes does.
constexpr int64_t kManyBytes = 16 << 20;
// Sums of two places stay 32-bit numbers.
constexpr int64_t kMostRowsOfGaps = int64_t{1} << 30;

}  // namespace

bool is_worth_gaps(const ir::Value& combined, int64_t rows) {
  return rows <= kMostRowsOfGaps && ir::elements(combined) * size_of(combined.dtype) >= kManyBytes;
}

ir::Fusion zeros_in_gaps(const ir::Fusion& fusion, const ir::Op& combine) {
  const ir::Value &nested = fusion.values[combine.inputs[0]], &out = fusion.values[combine.output];
  const auto& to_rows = std::get<ir::Combine>(combine.attribute);
  const int64_t rows = to_rows.rows, components = to_rows.components;
  const int axis = ir::ragged_axis(nested);
  const ir::Axis& ragged = nested.axes[axis];
  const std::vector<int64_t> all = ir::shape(fusion.values[ragged.extents]);
  const auto outer = static_cast<int64_t>(all.size()) - components;
  // Where an axis of the nested value is in the result.
  const auto kept = [&](int64_t dim) {
    return dim - std::count_if(ragged.by.begin() + outer, ragged.by.end(), [&](int64_t by) { return by < dim; });
  };

  ir::Builder b(cat(fusion.name, "_zeros"));
  std::vector<int64_t> flat(all.begin(), all.begin() + outer);
  flat.push_back(product(std::span(all).subspan(outer)));
  const auto number = [&](int64_t value, const std::vector<int64_t>& shape) {
    return b.broadcast(b.constant(DType::kS32, {value}), shape, {});
  };
  const auto within = [&](ir::ValueId id, int64_t most, const std::vector<int64_t>& shape) {
    return b.pointwise(ir::OpKind::kClamp, std::array{number(0, shape), id, number(most, shape)});
  };
  const auto input = [&](const char* name, int64_t most) {
    return within(b.reshape(b.input(name, DType::kS32, all), flat), most, flat);
  };
  const ir::ValueId starts = input("starts", rows), extents = input("extents", ragged.extent);
  const ir::ValueId ends = within(b.pointwise(ir::OpKind::kAdd, std::array{starts, extents}), rows, flat);
  std::vector<int64_t> none(flat.size(), 0), one = none, gaps = flat;
  one.back() = 1;
  gaps.back() += 1;
  const ir::ValueId from = b.pad(ends, one, none, b.constant(DType::kS32, {int64_t{0}}));
  const ir::ValueId to = b.pad(starts, none, one, b.constant(DType::kS32, {rows}));
  const ir::ValueId size = within(b.pointwise(ir::OpKind::kSub, std::array{to, from}), rows, gaps);

  // The result with the axes of the gap and of its rows for its own.
  const int64_t position = kept(axis);
  std::vector<int64_t> shape = ir::shape(out), by;
  shape[position] = 1;
  shape.insert(shape.begin() + position, gaps.back());
  for (int64_t i = 0; i < outer; ++i) by.push_back(kept(ragged.by[i]) + (kept(ragged.by[i]) >= position));
  by.push_back(position);
  const ir::ValueId zeros = b.broadcast(b.constant(out.dtype, ir::zero_of(out.dtype)), shape, {});
  b.output(b.combine(b.stretch(zeros, size, {position + 1, rows, by}), from, rows));
  ir::Fusion result = b.finish();
  // Names as in the fusion that this is a part of.
  for (size_t i = 0; i < result.values.size(); ++i) result.values[i].name = cat(result.name, "_", i);
  result.values[result.inputs[0]].name = fusion.values[combine.inputs[1]].name;
  result.values[result.inputs[1]].name = fusion.values[ragged.extents].name;
  result.values[result.outputs[0]].name = out.name;
  return result;
}

}  // namespace jf::plan
