// What the strategies share: facts about lanes and tasks, and loop transforms of a reference.
#pragma once

#include <cstdint>
#include <vector>

#include "base/integers.h"
#include "base/target.h"
#include "plan/traffic.h"
#include "schedule/schedule.h"

namespace jf::plan {

// Bytes of a line of a GPU's caches.
constexpr int64_t kLine = 128;

// CUDA: the largest power of two at which every access along a loop is a whole aligned vector.
int64_t vector_lanes(const Traffic& traffic, size_t loop);

// CUDA: of so many lanes as many as leave neighbouring threads near each other. An access of every other element is one
// for each lane, and the more lanes, the farther apart what the threads of a warp read together.
int64_t coalesced_lanes(const Traffic& traffic, size_t loop, int64_t lanes);

// Whether an element of every row's is stored.
bool stores_rows(const Traffic& traffic, size_t lane_loop);
// Whether elements are read that are the same for every row.
bool reads_columns(const Traffic& traffic, size_t lane_loop);

// The largest vectors where rows along the loop begin anywhere, and lanes may move to where vectors of them are aligned
// (lower/aligned_rows.h): elements of 2 or of 4 bytes, the same everywhere, of arrays of such rows, and of one
// row.
int64_t moved_lanes(const Traffic& traffic, size_t loop);

// Whether all rows along the loop begin equally far into a vector of so many elements wherever loops across rows are,
// so that lanes may move for whatever these fold.
bool rows_begin_alike(const Traffic& traffic, size_t loop, int64_t lanes);

// CPU: lanes of one register along a loop, by the widest type of the kernel; fewer where the loop is short.
int64_t register_lanes(const Traffic& traffic, size_t loop, const Target& target);
// At most so many where lanes are not side by side in memory.
int64_t most_shuffled_lanes(const Traffic& traffic, const Target& target);
// CPU: machine work per element when `loop` runs in lanes. A gathered vector costs `gather_cost` contiguous ones.
double lane_cost(const Traffic& traffic, size_t loop, int64_t lanes, double gather_cost);
// CPU: calls that are worth a thread of their own.
int64_t task_count(const Traffic& traffic);

int loop_rank(const schedule::Scheduler& scheduler, ir::ValueId value);
int64_t loop_extent(const schedule::Scheduler& scheduler, ir::ValueId value, int axis);

// Moves and merges the loops of a reference; positions change with each call.
class Loops {
 public:
  Loops(schedule::Scheduler& scheduler, ir::ValueId reference) : scheduler_(scheduler), reference_(reference) {}

  int rank() const { return loop_rank(scheduler_, reference_); }
  int64_t extent(int axis) const { return loop_extent(scheduler_, reference_, axis); }
  void split(int axis, int64_t factor, bool inner = true) { scheduler_.split(reference_, axis, factor, inner); }
  void parallelize(int axis, schedule::Parallel parallel) { scheduler_.parallelize(reference_, axis, parallel); }
  void reorder(const std::vector<int>& order) { scheduler_.reorder(reference_, order); }
  // `count` neighbours become one; whether there is one.
  bool merge(int first, int count);
  void move(int from, int to);

 private:
  schedule::Scheduler& scheduler_;
  ir::ValueId reference_;
};

// Merges the given numbers of neighbouring axes.
void collapse(schedule::Scheduler& scheduler, ir::ValueId reference, const std::vector<int>& axes);
// Makes the outermost axis one of about `tasks` iterations, taking in as many of the outer loops as that needs.
void make_tasks(schedule::Scheduler& scheduler, ir::ValueId reference, int64_t tasks, int outer_loops);

}  // namespace jf::plan
