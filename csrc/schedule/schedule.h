// How a fusion is computed: for every value the loop axes that its logical axes become, what each loop axis runs on,
// and where the value is computed among its consumers' loops. A plain value: copied, compared, printed, parsed. It can
// change the speed of a fusion, never its result.
//
// Heuristics and people write it through the same calls, those of Scheduler.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/fusion.h"

namespace jf::schedule {

using ir::ValueId;

// Where the iterations of a loop axis go. kVector: the lanes of registers; kTask: calls of a CPU kernel; kBlock and
// kThread: CUDA's.
enum class Parallel : uint8_t { kSerial, kUnroll, kVector, kTask, kBlock, kThread };

// Transforms name loop axes by their position at the time, outermost first.
//
// One axis becomes two; `factor` is the inner one's extent, or the outer one's. The other is the quotient rounded up.
struct Split {
  int axis;
  int64_t factor;
  bool inner = true;
  bool operator==(const Split&) const = default;
};
// The axis and the next one become one, the first counting slower.
struct Merge {
  int axis;
  bool operator==(const Merge&) const = default;
};
// New axis i is old axis order[i].
struct Reorder {
  std::vector<int> order;
  bool operator==(const Reorder&) const = default;
};
// A new axis before `axis`, along which the value is the same. It stands for logical axis `like_axis` of value `like`.
struct Insert {
  int axis;
  ValueId like;
  int like_axis;
  int64_t extent;
  bool operator==(const Insert&) const = default;
};
// An axis of extent 1 goes; its index is 0.
struct Drop {
  int axis;
  bool operator==(const Drop&) const = default;
};
using Transform = std::variant<Split, Merge, Reorder, Insert, Drop>;

struct LoopAxis {
  int64_t extent = 1;
  Parallel parallel = Parallel::kSerial;
  bool operator==(const LoopAxis&) const = default;
};

struct Domain {
  std::vector<int64_t> logical;       // extents of the value's axes
  std::vector<Transform> transforms;  // in the order they were made
  std::vector<LoopAxis> loop;         // what results
  int inline_at = 0;                  // outer loop axes that the value shares with its consumers
  bool operator==(const Domain&) const = default;
};

struct Schedule {
  std::vector<Domain> domains;  // by ValueId
  bool operator==(const Schedule&) const = default;
};

// Every value on its own logical axes, serial, shared with nobody.
Schedule unscheduled(const ir::Fusion& fusion);

// Edits the schedule of one fusion. Each call checks its arguments, throws UserError and then changes nothing. Axes may
// be negative, counting from the end.
class Scheduler {
 public:
  explicit Scheduler(const ir::Fusion& fusion);
  Scheduler(const ir::Fusion& fusion, Schedule start);

  void split(ValueId value, int axis, int64_t factor, bool inner = true);
  void merge(ValueId value, int axis);
  // `order` lists all loop axes: new axis i is old axis order[i].
  void reorder(ValueId value, const std::vector<int>& order);
  void parallelize(ValueId value, int axis, Parallel parallel);

  // Replays the transforms of `reference` on every other value that is computed or an output. Axes correspond through
  // the ops between the two values; an output that no op connects with the reference must have its shape.
  void transform_like(ValueId reference);
  // Copies the parallel types of `reference` to every such value with the same loop extents.
  void parallelize_like(ValueId reference);

  // Computes the value inside the outer `position` loops of its consumers.
  void inline_at(ValueId value, int position);
  // Inlines every computed value as deep as its loops agree with those of all its consumers.
  void inline_most();

  const Schedule& schedule() const { return schedule_; }

 private:
  Domain& domain(ValueId value, const char* call);
  int checked_axis(ValueId value, int axis, const char* call) const;
  void apply(ValueId value, const Transform& transform);
  int common_loops(ValueId value) const;

  const ir::Fusion& fusion_;
  std::vector<std::vector<ValueId>> consumers_;  // by ValueId: the results computed from it
  Schedule schedule_;
};

// Throws UserError unless every loop axis derives from logical axes and every inline position is possible.
void verify(const ir::Fusion& fusion, const Schedule& schedule);

//   schedule {
//     t1[4096,512]: merge(0) split(0,16) split(0,outer 64) -> [64 task, 2048, 16 vector] inline 3
//   }
// Values that are as in unscheduled() are not listed. parse(f, print(f, s)) == s.
std::string print(const ir::Fusion& fusion, const Schedule& schedule);
Schedule parse(const ir::Fusion& fusion, std::string_view text);
// "serial", "unroll", "vector", "task", "block", "thread".
std::string_view name(Parallel parallel);

}  // namespace jf::schedule
