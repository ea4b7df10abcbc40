// Searching tables in the builder: only the numbers that are used are searched for.
#include "base/error.h"
#include "ir/build.h"
#include "ir/infer.h"

namespace jf::ir {

ValueId Builder::search(ValueId table, ValueId numbers, Search how, const std::string& label) {
  value(table, "search");
  value(numbers, "search");
  const Value type = infer(fusion_, OpKind::kSearch, {table, numbers}, how, {"", DType::kS32, {}});
  if (fusion_.values[table].axes.back().extent == 0) return full(DType::kS32, shape(type), {int64_t{0}});
  return add_op(OpKind::kSearch, {table, numbers}, std::move(how), DType::kS32, {}, label);
}

// -1 where it slices the tables, too.
ValueId Builder::slice_of_search(const Op& op, const Slice& where, const std::vector<int64_t>& counts) {
  const Search how = std::get<Search>(op.attribute);
  for (int64_t dim : how.dims) {
    if (!where.keeps(dim, counts[dim], fusion_.values[op.output].axes[dim].extent)) return -1;
  }
  const ValueId table = op.inputs[0];
  return search(table, sliced(op.inputs[1], where, counts), how, op.label);
}

ValueId Builder::spread_search(const Op& op, const Pad& where, const std::vector<int64_t>& to) {
  const Search how = std::get<Search>(op.attribute);
  for (int64_t dim : how.dims) {
    const int64_t own = fusion_.values[op.output].axes[dim].extent;
    if (to[dim] != own || !where.from.keeps(dim, where.counts[dim], own)) return -1;
  }
  const ValueId table = op.inputs[0];
  return search(table, spread(op.inputs[1], where, to), how, op.label);
}

}  // namespace jf::ir
