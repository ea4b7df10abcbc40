#include <algorithm>

#include "plan/reduction_platforms.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using schedule::Parallel;
using schedule::Scheduler;

// A gathered vector costs about this many contiguous ones, where no cache line is used again.
constexpr double kFoldGatherCost = 20;
// Folding the lanes of a register costs about this many accesses.
constexpr double kCombineCost = 10;
// Rows that lie one behind the other and have no more elements are folded beside each other: 2 times as fast with 4
// elements of bf16 that are summed, 2 to 6 times in logsumexp of 4 to 16, 12 times in softmax of 2. Where they are
// stored, too, or take a polynomial each, fewer or more.
constexpr int64_t kShortRow = 4, kShortStored = 2, kShortDearStored = 8, kMostShortRow = 20;
// Scanning the lanes of a register, about as many.
constexpr double kScanCost = 4;
// A fold waits for its last result; two registers side by side hide that, where a row has many. Bytes, of which one
// register has as many as a vector axis may, are folded in a cycle each.
constexpr int64_t kLongRowVectors = 16, kMostFoldLanes = 64;
// Rows side by side hide it, too, and touch the folds across them once. More of them, a multiple of 4 KB apart, do not
// stay in the first-level cache together, and those of 16 bits are not worth it: with two instead of four, and one of
// 16 bits, a core takes 0.72 to 0.79 of the time for norms' derivatives of 4096 columns.
constexpr int64_t kRows = 2;
// Memory likes whole rows of columns: their accumulators may fill half of the first-level cache. Few of them are in
// registers.
constexpr int64_t kMaxChunk = 256, kRegisters = 8;
// Tasks for whose sake the columns are cut.
constexpr int64_t kFewTasks = 16;
// Columns so short that a few registers are as fast.
constexpr int64_t kShortColumn = 64;
// What stays in the first-level and the second-level cache.
constexpr int64_t kFirstLevelBytes = 64 << 10, kSecondLevelBytes = 512 << 10;
// Arrays on the stack, of which those of later phases do not take the place of earlier ones.
constexpr int64_t kStackBytes = 128 << 10;

// Iterations of all loops that are folded, or of all that are not.
int64_t iterations(const Traffic& traffic, bool folded) {
  int64_t count = 1;
  for (size_t loop = 0; loop < traffic.extents.size(); ++loop) {
    if (traffic.folded[loop] == folded) count *= traffic.extents[loop];
  }
  return count;
}

size_t choose_lane_loop(const Traffic& traffic, const Target& target) {
  size_t best = traffic.extents.size();
  double best_cost = 0;
  for (size_t loop = traffic.extents.size(); loop-- > 0;) {
    const int64_t extent = traffic.extents[loop];
    if (extent == 1 || traffic.across[loop]) continue;
    const int64_t lanes = register_lanes(traffic, loop, target);
    double cost = lane_cost(traffic, loop, lanes, kFoldGatherCost);
    if (traffic.folded[loop]) cost += kCombineCost / static_cast<double>(divide_up(extent, lanes));
    if (traffic.folded[loop] && traffic.scans) cost += kScanCost;
    if (best < traffic.extents.size() && cost >= best_cost) continue;
    best = loop;
    best_cost = cost;
  }
  return std::min(best, traffic.extents.size() - 1);
}

// Whether each element takes a polynomial or more.
bool has_dear_elements(const RowFacts& facts) {
  const auto& values = facts.segment.values;
  int64_t all = 1;
  for (int64_t extent : facts.traffic.extents) all *= extent;
  return std::any_of(facts.segment.ops.begin(), facts.segment.ops.end(), [&](const ir::Op& op) {
    const ir::OpInfo& info = ir::info(op.kind);
    return info.op_class == ir::OpClass::kPointwise && info.operands == ir::OperandTypes::kFloating &&
           op.kind != ir::OpKind::kSqrt && op.kind != ir::OpKind::kRsqrt && ir::elements(values[op.output]) == all;
  });
}

// Lanes along short rows idle, and fold and compute for each row what lanes from row to row do for many at once.
size_t leave_short_rows(const RowFacts& facts, size_t row, const Target& target) {
  const Traffic& traffic = facts.traffic;
  const int64_t extent = traffic.extents[row];
  if (!traffic.folded[row] || traffic.scans || extent > kMostShortRow) return row;
  const bool is_dear = has_dear_elements(facts);
  for (size_t loop = 0; loop < traffic.extents.size(); ++loop) {
    const bool is_kept = !traffic.folded[loop] && !traffic.across[loop];
    if (!is_kept || traffic.extents[loop] < register_lanes(traffic, loop, target)) continue;
    bool fits = true, turns_stores = false;
    for (const Access& access : traffic.accesses) {
      const int64_t step = std::abs(access.steps[loop]);
      if (access.bytes == 0 || step < 2) continue;
      fits = fits && step == extent && std::abs(access.steps[row]) == 1;
      turns_stores = turns_stores || access.stores;
    }
    const int64_t most =
        is_dear ? (turns_stores ? kShortDearStored : kMostShortRow) : (turns_stores ? kShortStored : kShortRow);
    if (fits && extent <= most) return loop;
  }
  return row;
}

bool reads_narrow(const Traffic& traffic, size_t lane_loop) {
  return std::any_of(traffic.accesses.begin(), traffic.accesses.end(), [&](const Access& access) {
    return access.steps[lane_loop] == 1 && access.bytes > 0 && access.bytes < traffic.widest_lane;
  });
}

// Rows that share their accesses to folds across them.
int64_t rows_side_by_side(const Traffic& traffic, size_t lane_loop) {
  const auto across = std::find(traffic.across.begin(), traffic.across.end(), true) - traffic.across.begin();
  if (across == static_cast<std::ptrdiff_t>(traffic.across.size()) || reads_narrow(traffic, lane_loop)) return 1;
  return traffic.extents[across] % kRows == 0 ? kRows : 1;
}

}  // namespace

CpuReduction propose_cpu(const RowFacts& facts, const Target& target) {
  const Traffic& traffic = facts.traffic;
  CpuReduction p;
  const size_t lane_loop = leave_short_rows(facts, choose_lane_loop(traffic, target), target);
  p.lanes = register_lanes(traffic, lane_loop, target);
  p.lane_loop = static_cast<int>(lane_loop);
  while (p.lanes > 1 && p.lanes / 2 >= traffic.extents[lane_loop]) p.lanes /= 2;
  const bool along_row = traffic.folded[lane_loop];
  if (along_row) p.rows = rows_side_by_side(traffic, lane_loop);
  if (along_row && traffic.extents[lane_loop] >= 2 * kLongRowVectors * p.lanes)
    p.lanes = std::min(2 * p.lanes, kMostFoldLanes);
  p.tasks = task_count(traffic);

  const Phases dear = facts.phases(Keep::kDear);
  const int64_t column = iterations(traffic, true), vectors = divide_up(traffic.extents[lane_loop], p.lanes);
  if (!along_row) {
    p.chunk = std::min(vectors, column <= kShortColumn ? kRegisters / 2 : kMaxChunk);
    // The next phase finds its columns in the cache.
    const int64_t bytes = column * p.lanes * traffic.widest_lane;
    while (dear.count > 1 && p.chunk > kRegisters / 2 && p.chunk * bytes > kSecondLevelBytes) p.chunk /= 2;
    const int64_t others = iterations(traffic, false) / traffic.extents[lane_loop];
    while (p.chunk > kRegisters / 2 && others * divide_up(vectors, p.chunk) < std::min(p.tasks, kFewTasks))
      p.chunk /= 2;
    p.chunk = divide_up(vectors, divide_up(vectors, p.chunk));
  }
  const auto fits = [&](int64_t side_by_side) {
    const int64_t elements = column * side_by_side;
    return elements * dear.kept_bytes <= kFirstLevelBytes && elements * dear.all_kept_bytes <= kStackBytes;
  };
  while (p.rows > 1 && !fits(p.rows)) p.rows /= 2;
  if (dear.kept_bytes > 0 && fits(along_row ? p.rows : p.chunk * p.lanes)) p.keep = Keep::kDear;
  return p;
}

void schedule_cpu(Scheduler& scheduler, ir::ValueId reference, const Traffic& traffic, const CpuReduction& p) {
  collapse(scheduler, reference, traffic.collapse);
  const int rank = loop_rank(scheduler, reference);
  if (rank == 0) return;
  const bool in_chunks = p.chunk > 1 && !traffic.folded[p.lane_loop], in_lanes = p.lanes > 1;
  if (in_lanes) scheduler.split(reference, p.lane_loop, p.lanes);
  if (in_chunks) scheduler.split(reference, p.lane_loop, p.chunk);
  const int added = in_lanes + in_chunks;
  int rows_loop = -1;
  if (p.rows > 1) {
    for (rows_loop = 0; !traffic.across[rows_loop];) ++rows_loop;
    if (rows_loop > p.lane_loop) rows_loop += added;
    scheduler.split(reference, rows_loop, p.rows);
  }
  // Kept loops, folded ones, then the columns side by side.
  std::vector<int> order;
  int task_loops = 0;
  auto at = [&](int loop) {
    if (loop > p.lane_loop) loop += added;
    return p.rows > 1 && loop > rows_loop ? loop + 1 : loop;
  };
  auto place = [&](int loop) { order.push_back(at(loop)); };
  for (const bool folded : {false, true}) {
    for (int loop = 0; loop < rank; ++loop) {
      if (traffic.folded[loop] == folded && (!folded || loop != p.lane_loop)) place(loop);
    }
  }
  if (traffic.folded[p.lane_loop]) place(p.lane_loop);
  for (int loop = 0; loop < rank && !traffic.across[loop]; ++loop) task_loops += !traffic.folded[loop];
  if (p.rows > 1) order.push_back(rows_loop + 1);
  for (int i = 1; i <= added; ++i) order.push_back(at(p.lane_loop) + i);
  scheduler.reorder(reference, order);
  if (in_lanes) scheduler.parallelize(reference, -1, Parallel::kVector);
  if (p.rows > 1) scheduler.parallelize(reference, rank, Parallel::kUnroll);
  if (in_chunks && p.chunk <= kRegisters) scheduler.parallelize(reference, rank, Parallel::kUnroll);
  if (p.tasks > 1 && task_loops > 0) make_tasks(scheduler, reference, p.tasks, task_loops);
}

}  // namespace jf::plan
