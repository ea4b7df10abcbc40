#include "plan/ragged.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/lists.h"
#include "plan/ragged_again.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using schedule::Domain;
using schedule::Parallel;
using schedule::Scheduler;

constexpr int64_t kMaxRaggedLanes = 16;
// Vectors of columns side by side on the CPU. Memory likes whole rows: the sums of all folds may fill half of the
// first-level cache. Where rows are read again they come from the second-level cache, so that of each there are few.
constexpr int64_t kRaggedColumns = 256, kColumnsAgain = 16;
// Pieces of work for whose sake columns are cut.
constexpr int64_t kFewPieces = 64;
constexpr int64_t kRaggedThreads = 256, kRaggedUnroll = 4, kMuchMemory = int64_t{1} << 26;  // bytes
// Of a block that keeps the rows of a part: as few as have room for them, so that several blocks, which wait at
// different times, share a multiprocessor. And registers of a thread for rows.
constexpr int64_t kFewestKeeping = 256, kMostKeeping = 512, kKept = 64;
// Elements below which another core gains nothing, and calls enough for any machine.
constexpr int64_t kSmall = 64 << 10, kMaxRaggedTasks = 256;

// The loops of what folds or combines, as its root axes.
struct RaggedShape {
  std::vector<int64_t> extents;
  int ragged = -1, column = -1;             // column: the innermost axis where it is dense; -1 for none
  std::vector<int> kept = {}, folded = {};  // the others, parts before their component; folded: those within rows
  bool folds_columns = false;               // or has their loops inside of those over rows
};

// How the values of a segment stand together. Folds and scans of dense axes on the way to its outputs have their loops
// inside of those over rows, and so have all others then.
struct Together {
  std::vector<Domain> domains;
  std::vector<bool> folded_by = {};  // by axis of the extents: whether an output folds it
  bool inside = false, scans = false;
  int64_t columns = 1;  // the longest innermost axis that is neither ragged nor its component
};

Together together(const ir::Fusion& segment) {
  Together all{schedule::unscheduled(segment).domains};
  for (const ir::Op& op : segment.ops) {
    const Domain& domain = all.domains[op.output];
    if (domain.ragged.empty()) continue;
    const bool nested = ir::ragged_axis(segment.values[op.output]) >= 0;
    all.scans = all.scans || (nested && std::holds_alternative<ir::Scan>(op.attribute));
    all.inside = all.inside || all.scans || (nested && std::holds_alternative<ir::Reduce>(op.attribute));
    const int last = static_cast<int>(domain.logical.size()) - 1;
    const std::vector<int>& by = domain.ragged[0].by;
    const bool is_dense = last != domain.ragged[0].axis && !contains(by, last);
    if (is_dense) all.columns = std::max(all.columns, domain.logical[last]);
    all.folded_by.resize(domain.ragged[0].by.size(), false);
    for (size_t i = 0; i < domain.ragged[0].by.size() && !domain.reduced.empty(); ++i) {
      all.folded_by[i] = all.folded_by[i] || domain.reduced[domain.ragged[0].by[i]];
    }
  }
  return all;
}

// Outputs first, folds next: most values are like them.
std::vector<ir::ValueId> computed_values(const ir::Fusion& segment) {
  std::vector<ir::ValueId> values = segment.outputs;
  for (const bool folds : {true, false}) {
    for (const ir::Op& op : segment.ops) {
      if (std::holds_alternative<ir::Reduce>(op.attribute) != folds) continue;
      if (!contains(values, op.output)) values.push_back(op.output);
    }
  }
  return values;
}

// The values that are scheduled together: all, or those that each of several folds after each other needs.
std::vector<std::vector<ir::ValueId>> with_loops_of_their_own(const ir::Fusion& segment) {
  if (!folds_again(segment)) return {computed_values(segment)};
  std::vector<std::vector<ir::ValueId>> result;
  for (const auto& [fold, values] : values_of_folds(segment)) {
    result.push_back(computed_values(segment));
    std::erase_if(result.back(), [&, id = fold, &needs = values](ir::ValueId value) {
      return value != id && !contains(needs, value);
    });
  }
  return result;
}

// The first of some values with most loops over rows and others, those of one element not counted; -1 where none has
// rows.
ir::ValueId reference_of(const Together& all, const std::vector<ir::ValueId>& among) {
  const auto rank = [&](ir::ValueId id) -> size_t {
    const Domain& domain = all.domains[id];
    if (domain.ragged.empty()) return 0;
    const size_t rows = 1 + domain.ragged[0].by.size();
    size_t axes = rows;
    for (int axis = 0; axis < std::ssize(domain.logical); ++axis) {
      const bool of_rows = axis == domain.ragged[0].axis || contains(domain.ragged[0].by, axis);
      axes += !of_rows && domain.logical[axis] != 1;
    }
    return axes;
  };
  ir::ValueId reference = -1;
  for (ir::ValueId id : among) {
    if (rank(id) > (reference < 0 ? 0 : rank(reference))) reference = id;
  }
  return reference;
}

RaggedShape shape_of(const Together& all, ir::ValueId reference) {
  JF_CHECK(reference >= 0, "a segment of nested values neither folds nor combines rows");
  const Domain& domain = all.domains[reference];
  RaggedShape shape{domain.logical, domain.ragged[0].axis};
  const std::vector<int>& by = domain.ragged[0].by;
  const auto is_by = [&](int axis) { return contains(by, axis); };
  const auto is_folded = [&](int axis) {
    const auto found = std::find(by.begin(), by.end(), axis);
    if (found != by.end()) return bool{all.folded_by[found - by.begin()]};
    return all.inside || (!domain.reduced.empty() && domain.reduced[axis]);
  };
  const int rank = static_cast<int>(domain.logical.size());
  if (rank > 0 && shape.ragged != rank - 1 && !is_by(rank - 1) && all.columns > 1 && !all.scans) {
    shape.column = rank - 1;
    shape.folds_columns = is_folded(rank - 1);
  }
  shape.kept.assign(by.rbegin(), by.rend());
  std::erase_if(shape.kept, is_folded);
  for (int axis = 0; axis < rank; ++axis) {
    if (axis == shape.ragged || axis == shape.column) continue;
    if (is_folded(axis)) shape.folded.push_back(axis);
    if (!is_folded(axis) && !is_by(axis)) shape.kept.push_back(axis);
  }
  return shape;
}

int64_t power_of_two(int64_t least, int64_t most) {
  int64_t n = 1;
  while (n < least && n < most) n *= 2;
  return n;
}

// Kept axes, rows, other folded axes, columns.
std::vector<int> order_of(const RaggedShape& shape) {
  std::vector<int> order = shape.kept;
  order.push_back(shape.ragged);
  order.insert(order.end(), shape.folded.begin(), shape.folded.end());
  if (shape.column >= 0) order.push_back(shape.column);
  return order;
}

void schedule_cpu(Loops& loops, const RaggedShape& shape, const NestedParameters& p) {
  loops.reorder(order_of(shape));
  int outer = static_cast<int>(shape.kept.size());
  if (shape.column >= 0) {
    // [kept, columns, rows, columns side by side, lanes]
    const int column = static_cast<int>(shape.extents.size()) - 1;
    loops.split(column, p.lanes);
    loops.parallelize(column + 1, Parallel::kVector);
    if (!shape.folds_columns) {
      loops.split(column, p.columns);
      std::vector<int> order;
      for (int i = 0; i < column + 3; ++i) {
        if (i != column) order.push_back(i);
      }
      order.insert(order.begin() + outer, column);
      loops.reorder(order);
      ++outer;
    }
  }
  if (shape.column < 0 && shape.folded.empty() && p.lanes > 1) {
    loops.split(outer, p.lanes);
    loops.parallelize(outer + 1, Parallel::kVector);
  }
  if (p.tasks < 2 || outer == 0) return;
  loops.merge(0, outer);
  const int64_t pieces = loops.extent(0);
  if (pieces > p.tasks) loops.split(0, divide_up(pieces, p.tasks));
  loops.parallelize(0, Parallel::kTask);
}

void schedule_cuda(Loops& loops, const RaggedShape& shape, const NestedParameters& p) {
  loops.reorder(order_of(shape));
  int outer = static_cast<int>(shape.kept.size());
  const int rank = static_cast<int>(shape.extents.size()), rows = outer;
  if (shape.column < 0) {
    loops.split(rows, p.columns);
    loops.parallelize(rows + 1, Parallel::kThread);
  } else {
    // Columns: [blocks, thread, lanes], or folded by the thread.
    int column = rank - 1;
    loops.split(column, p.lanes);
    if (p.lanes > 1) loops.parallelize(column + 1, Parallel::kVector);
    loops.split(column, p.columns);
    loops.parallelize(column + 1, Parallel::kThread);
    loops.split(rows, p.rows);
    loops.parallelize(rows + 1, Parallel::kThreadY);
    column += 1;
    if (p.unroll > 1 && p.unroll >= loops.extent(rows)) {
      loops.parallelize(rows, Parallel::kUnroll);
    } else if (p.unroll > 1) {
      loops.split(rows, p.unroll);
      loops.parallelize(rows + 1, Parallel::kUnroll);
      column += 1;
    }
    if (!shape.folds_columns) {
      std::vector<int> order;
      for (int i = 0; i < column + 3; ++i) {
        if (i != column && i != column + 1) order.push_back(i);
      }
      order.insert(order.begin() + outer, {column, column + 1});
      loops.reorder(order);
      ++outer;
    }
  }
  if (outer == 0) return;
  loops.merge(0, outer);
  loops.parallelize(0, Parallel::kBlock);
}

// The rows of a segment in memory.
std::vector<ir::ValueId> partitions(const ir::Fusion& segment) {
  std::vector<ir::ValueId> values;
  for (const ir::Op& op : segment.ops) {
    if (op.kind == ir::OpKind::kPartition) values.push_back(op.output);
  }
  return values;
}

// Loops of a block that keeps rows, outside of that over them: the block's number and its columns'.
constexpr int kAroundRows = 2;

void compute_before_rows(const ir::Fusion& segment, ir::ValueId value, Scheduler& scheduler) {
  for (auto op = segment.ops.rbegin(); op != segment.ops.rend(); ++op) {
    if (op->output != value) continue;
    if (op->kind == ir::OpKind::kBroadcast) {
      value = op->inputs[0];
      continue;
    }
    const Domain& domain = scheduler.schedule().domains[value];
    if (domain.reduced.empty() && std::ssize(domain.loop) > kAroundRows) scheduler.inline_at(value, kAroundRows);
    return;
  }
}

// Of folds after each other a block reads its rows once where its threads have room for them.
void keep_rows(const ir::Fusion& segment, const RaggedShape& shape, NestedParameters& p) {
  const int64_t rows = shape.extents[shape.ragged];
  if (!folds_again(segment) || shape.folds_columns || !shape.folded.empty()) return;
  for (int64_t most = kFewestKeeping; most <= kMostKeeping; most *= 2) {
    const int64_t threads = power_of_two(rows, most / p.columns), each = divide_up(rows, threads);
    if (each * p.lanes * std::ssize(partitions(segment)) > kKept) continue;
    p.rows = threads;
    p.unroll = each;
    p.keep = true;
    return;
  }
}

// Vectors of columns of a piece on the CPU.
int64_t columns_side_by_side(const ir::Fusion& segment, const RaggedShape& shape, int64_t vectors) {
  const auto folds = std::count_if(segment.ops.begin(), segment.ops.end(),
                                   [](const ir::Op& op) { return std::holds_alternative<ir::Reduce>(op.attribute); });
  int64_t others = 1;
  for (int axis : shape.kept) others *= shape.extents[axis];
  int64_t most = folds_again(segment) ? kColumnsAgain : kRaggedColumns / std::max<int64_t>(folds, 1);
  while (most > kColumnsAgain && others * divide_up(vectors, most) < kFewPieces) most /= 2;
  return std::clamp<int64_t>(vectors, 1, most);
}

}  // namespace

NestedParameters propose_nested(const ir::Fusion& segment, const Target& target) {
  const Together all = together(segment);
  const RaggedShape shape = shape_of(all, reference_of(all, computed_values(segment)));
  int64_t columns = shape.column < 0 ? 1 : all.columns, widest = 4, elements = 0;
  for (const ir::Value& value : segment.values) {
    if (ir::ragged_axis(value) >= 0) widest = std::max(widest, size_of(compute_dtype(value.dtype)));
  }
  int64_t narrowest = widest;
  for (const ir::Op& op : segment.ops) {
    if (op.kind == ir::OpKind::kCombine) elements = std::max(elements, ir::elements(segment.values[op.output]));
    if (op.kind != ir::OpKind::kPartition) continue;
    narrowest = std::min(narrowest, size_of(segment.values[op.inputs[0]].dtype));
    elements = std::max(elements, ir::elements(segment.values[op.inputs[0]]));
  }
  NestedParameters p;
  if (target.platform == Platform::kCpu) {
    const int64_t along = shape.column >= 0 ? columns : shape.folded.empty() ? shape.extents[shape.ragged] : 1;
    p.lanes = power_of_two(along, std::min(kMaxRaggedLanes, target.vector_bytes / widest));
    p.columns = shape.folds_columns ? 1 : columns_side_by_side(segment, shape, divide_up(columns, p.lanes));
    if (elements >= kSmall) p.tasks = kMaxRaggedTasks;
    return p;
  }
  const int64_t rows = shape.extents[shape.ragged];
  if (shape.column < 0) {
    p.columns = power_of_two(rows, kRaggedThreads);
    return p;
  }
  p.lanes = kMaxVectorBytes / narrowest;
  while (p.lanes > 1 && (columns % p.lanes != 0 || columns < p.lanes * kWarp / 4)) p.lanes /= 2;
  p.columns = power_of_two(divide_up(columns, p.lanes), kWarp);
  // Where memory bounds it, more rows on their way of fewer threads.
  const int64_t times = elements * narrowest >= kMuchMemory ? 2 : 1;
  p.rows = power_of_two(rows, kRaggedThreads / times / p.columns);
  p.unroll = std::clamp<int64_t>(rows / p.rows, 1, times * kRaggedUnroll);
  keep_rows(segment, shape, p);
  return p;
}

std::string print(const NestedParameters& p) {
  return cat("nested lanes=", p.lanes, " columns=", p.columns,
             p.rows > 1 ? cat(" rows=", p.rows, " unroll=", p.unroll, p.keep ? " keep" : "") : "",
             p.tasks > 1 ? cat(" tasks=", p.tasks) : "");
}

schedule::Schedule nested_schedule(const ir::Fusion& segment, const NestedParameters& parameters, Platform platform) {
  const Together all = together(segment);
  Scheduler scheduler(segment);
  // References with the values that have their loops.
  std::vector<std::pair<ir::ValueId, std::vector<ir::ValueId>>> groups;
  for (std::vector<ir::ValueId>& left : with_loops_of_their_own(segment)) {
    // Values that share no axis with the first reference but rows have loops of their own inside of those over rows.
    for (ir::ValueId reference = reference_of(all, left); reference >= 0; reference = reference_of(all, left)) {
      std::erase(left, reference);
      groups.emplace_back(reference, std::vector<ir::ValueId>{});
      for (ir::ValueId id : scheduler.alike(reference)) {
        if (std::erase(left, id) > 0) groups.back().second.push_back(id);
      }
    }
  }
  // A kernel has as many lanes everywhere, and on CUDA all of them.
  NestedParameters p = parameters;
  for (const auto& [reference, like] : groups) {
    const RaggedShape shape = shape_of(all, reference);
    const bool whole = platform == Platform::kCpu || shape.column < 0;
    while (!whole && shape.extents[shape.column] % p.lanes != 0) p.lanes /= 2;
  }
  for (const auto& [reference, like] : groups) {
    Loops loops(scheduler, reference);
    if (platform == Platform::kCpu) {
      schedule_cpu(loops, shape_of(all, reference), p);
    } else {
      schedule_cuda(loops, shape_of(all, reference), p);
    }
    if (like.empty()) continue;
    scheduler.transform_like(reference, like);
    scheduler.parallelize_like(reference, like);
  }
  scheduler.inline_most();
  if (p.keep) {
    // Inside of the loops over blocks and columns.
    for (ir::ValueId id : partitions(segment)) scheduler.inline_at(id, kAroundRows);
    // What all rows of a component need is computed before the loop over them, not in each of its branches.
    for (const ir::Op& op : segment.ops) {
      if (op.kind == ir::OpKind::kStretch) compute_before_rows(segment, op.inputs[0], scheduler);
    }
  }
  return scheduler.schedule();
}

}  // namespace jf::plan
