#include "plan/reduction_platforms.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using schedule::Parallel;
using schedule::Scheduler;

// Splits an axis into one whose iterations are unrolled and, outside of it, the rest. How many axes were added.
int unroll(Loops& loops, int axis, int64_t count) {
  if (loops.extent(axis) > count && count > 1) {
    loops.split(axis, count);
    loops.parallelize(axis + 1, Parallel::kUnroll);
    return 1;
  }
  if (loops.extent(axis) <= count) loops.parallelize(axis, Parallel::kUnroll);
  return 0;
}

}  // namespace

void schedule_cuda(Scheduler& scheduler, ir::ValueId reference, const Traffic& traffic, const CudaReduction& p) {
  collapse(scheduler, reference, traffic.collapse);
  Loops loops(scheduler, reference);
  const int rank = loops.rank();
  const bool in_lanes = p.lanes > 1, columns = p.along == ThreadsAlong::kColumns;
  if (rank == 0) return;
  if (in_lanes) loops.split(p.lane_loop, p.lanes);
  // Blocks; columns of a block; rows across; what is folded; runs of it; lanes.
  enum Group { kKept, kColumn, kAcross, kFolded, kRun, kGroups };
  std::vector<int> order;
  int count[kGroups] = {};
  for (int group = 0; group < kGroups; ++group) {
    auto place = [&](int loop) {
      const int own = traffic.runs[loop]               ? kRun
                      : traffic.folded[loop]           ? kFolded
                      : traffic.across[loop]           ? kAcross
                      : columns && loop == p.lane_loop ? kColumn
                                                       : kKept;
      if (own != group) return;
      order.push_back(loop > p.lane_loop && in_lanes ? loop + 1 : loop);
      ++count[group];
    };
    for (int loop = 0; loop < rank; ++loop) {
      if (loop != p.lane_loop) place(loop);
    }
    place(p.lane_loop);  // innermost of its group
  }
  if (in_lanes) order.push_back(p.lane_loop + 1);
  loops.reorder(order);
  int position[kGroups + 1] = {};
  bool present[kGroups] = {};
  for (int group = 0; group < kGroups; ++group) {
    present[group] = loops.merge(position[group], count[group]);
    position[group + 1] = position[group] + present[group];
  }
  if (in_lanes) loops.parallelize(-1, Parallel::kVector);
  const int folded = position[kFolded];

  switch (p.along) {
    case ThreadsAlong::kRow: {
      // [row block, rows across, row of the block, block of the row, vectors, thread, lanes]
      int row = folded;
      if (p.cluster > 1) {
        const bool even = traffic.extents[p.lane_loop] % p.lanes == 0;
        loops.split(row, even ? p.cluster : p.threads * p.unroll, !even);
        loops.parallelize(row++, Parallel::kCluster);
      }
      loops.split(row, p.threads);
      loops.parallelize(row + 1, Parallel::kThread);
      unroll(loops, row, p.unroll);
      const int rows = present[kAcross] ? position[kAcross] : 0;
      if (p.threads_y > 1 && (present[kAcross] || present[kKept])) {
        loops.split(rows, p.threads_y);
        loops.parallelize(rows + 1, Parallel::kThreadY);
      }
      break;
    }
    case ThreadsAlong::kRuns: {
      // [row block, runs of a thread, runs of the block, vectors, thread, lanes]
      const int run = position[kRun];
      loops.split(run, p.threads);
      loops.parallelize(run + 1, Parallel::kThread);
      loops.parallelize(run, Parallel::kUnroll);
      loops.split(folded, p.threads_y);
      loops.parallelize(folded + 1, Parallel::kThreadY);
      unroll(loops, folded, p.unroll);
      break;
    }
    case ThreadsAlong::kRows:
      // [row block, thread, vectors, lanes]
      unroll(loops, folded, p.unroll);
      loops.split(0, p.threads);
      loops.parallelize(1, Parallel::kThread);
      break;
    case ThreadsAlong::kColumns: {
      // [blocks, thread, rows, rows of a thread, rows of the block, lanes]; where they are scanned, rows of a thread
      // are neighbours: [blocks, thread, rows, rows of the block, rows of a thread, lanes]
      if (traffic.scans && p.unroll > 1) {
        loops.split(folded, p.unroll);
        loops.parallelize(folded + 1, Parallel::kUnroll);
      }
      if (p.threads_y > 1) {
        loops.split(folded, p.threads_y);
        loops.parallelize(folded + 1, Parallel::kThreadY);
      }
      if (!traffic.scans) unroll(loops, folded, p.unroll);
      const int column = position[kColumn];
      loops.split(column, p.threads);
      loops.parallelize(column + 1, Parallel::kThread);
      if (present[kKept]) loops.merge(0, 2);
      loops.parallelize(0, Parallel::kBlock);
      return;
    }
  }
  if (present[kKept]) loops.parallelize(0, Parallel::kBlock);
}

}  // namespace jf::plan
