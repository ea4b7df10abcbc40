#include "lower/index_reads.h"

#include <algorithm>

#include "base/error.h"
#include "base/lists.h"

namespace jf::lower {
namespace {

using loops::IndexPtr;

IndexRead read_of(const ir::Fusion& fusion, const schedule::Ragged& ragged, const graph::Indexer& at, ir::ValueId value,
                  int64_t high, bool& even) {
  const std::vector<int64_t> strides = jf::strides(ir::shape(fusion.values[value]));
  const int last = *std::max_element(ragged.by.begin(), ragged.by.end());
  std::vector<int64_t> weights(static_cast<size_t>(last) + 1, 0);
  for (size_t i = 0; i < ragged.by.size(); ++i) weights[ragged.by[i]] = strides[i];
  const graph::Position p = at.position(weights);
  even = even && p.lane_step == 0;
  IndexRead read{ragged.axis, value, p.at, high, {}};
  for (const graph::Bound& bound : at.bounds()) {
    if (share_variable(bound.index.at, p.at)) read.exists.push_back({bound.index.at, bound.bound});
  }
  return read;
}

bool same(const IndexRead& a, const IndexRead& b) {
  return a.value == b.value && a.high == b.high && graph::same(a.offset, b.offset);
}

}  // namespace

std::vector<IndexRead> counts_of(const ir::Fusion& fusion, const schedule::Domain& domain, const graph::Indexer& at,
                                 bool folded, bool& even) {
  std::vector<IndexRead> result;
  for (const schedule::Ragged& ragged : domain.ragged) {
    if (folded && !domain.reduced.empty() && domain.reduced[ragged.axis]) continue;
    result.push_back(read_of(fusion, ragged, at, ragged.extents, domain.logical[ragged.axis], even));
  }
  return result;
}

std::vector<IndexRead> starts_of(const ir::Fusion& fusion, const schedule::Domain& domain, const graph::Indexer& at,
                                 const ir::Op& op, bool& even) {
  std::vector<IndexRead> result;
  const ir::Combine* combine = std::get_if<ir::Combine>(&op.attribute);
  if (combine == nullptr && op.kind != ir::OpKind::kPartition) return result;
  for (size_t i = 0; i < domain.ragged.size(); ++i) {
    const ir::ValueId starts = op.inputs[combine != nullptr ? 1 + i : 1 + 2 * i];
    const int64_t rows = combine == nullptr ? fusion.values[op.inputs[0]].axes[partitioned_axis(op, i)].extent
                         : i == 0           ? combine->rows
                                            : combine->also[i - 1];
    result.push_back(read_of(fusion, domain.ragged[i], at, starts, rows, even));
  }
  return result;
}

int64_t partitioned_axis(const ir::Op& op, size_t number) {
  const auto& nest = std::get<ir::Nest>(op.attribute);
  return number == 0 ? nest.axis : nest.also[2 * (number - 1)];
}

bool IndexReads::is_open(const IndexPtr& index) const {
  if (index->kind == loops::IndexKind::kConst) return true;
  if (index->kind == loops::IndexKind::kVar) return open_.count(index->value) > 0;
  return is_open(index->a) && is_open(index->b);
}

void IndexReads::offer(const IndexRead& read, int& next_variable, ThreadVariables& threads) {
  const auto is_it = [&](const Known& known) { return same(known.read, read); };
  if (std::any_of(known_.begin(), known_.end(), is_it) || !is_open(read.offset)) return;
  for (const loops::Below& bound : read.exists) {
    if (!is_open(bound.index)) return;
  }
  auto differs = [&](const IndexPtr& index) {
    return std::any_of(threads.begin(), threads.end(), [&](int64_t thread) { return depends(index, thread); });
  };
  const bool apart = differs(read.offset) || std::any_of(read.exists.begin(), read.exists.end(),
                                                         [&](const loops::Below& b) { return differs(b.index); });
  if (apart) threads.insert(next_variable);
  known_.push_back({read, next_variable++});
}

std::vector<Guarded> IndexReads::close(size_t first, std::vector<Guarded> statements, const ThreadVariables& threads) {
  for (; known_.size() > first; known_.pop_back()) {
    const auto& [read, variable] = known_.back();
    statements = together(std::move(statements), variable, threads);
    loops::ReadIndex statement{variable, input_number_[read.value], read.offset, read.high};
    statements.insert(statements.begin(), {read.exists, {std::move(statement)}});
  }
  return statements;
}

int IndexReads::variable(const IndexRead& read) const {
  for (const auto& [known, variable] : known_) {
    if (same(known, read)) return variable;
  }
  JF_CHECK(false, "value ", read.value, " is read as an index where its loops are not open");
}

}  // namespace jf::lower
