// How a fusion is computed: for every value the loop axes that its logical axes become, what each loop axis runs on,
// and where the value is computed among its consumers' loops. A plain value: copied, compared, printed, parsed. It can
// change the speed of a fusion, never its result.
//
// Heuristics and people write it through the same calls, those of Scheduler.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/fusion.h"

namespace jf::schedule {

using ir::ValueId;

// Where the iterations of a loop axis go. kVector: the lanes of registers; kTask: calls of a CPU kernel; kBulk: one
// instruction that copies all elements (CUDA, sm_90); the others: CUDA's blocks and threads. kCluster: blocks that can
// fold together (sm_90), one cluster of them for each iteration of kBlock.
enum class Parallel : uint8_t { kSerial, kUnroll, kVector, kTask, kBlock, kBlockY, kCluster, kThread, kThreadY, kBulk };
constexpr int kParallelTypes = 10;
constexpr bool is_serial(Parallel parallel) { return parallel == Parallel::kSerial || parallel == Parallel::kUnroll; }
constexpr bool is_block(Parallel parallel) {
  return parallel == Parallel::kBlock || parallel == Parallel::kBlockY || parallel == Parallel::kCluster;
}
constexpr bool is_thread(Parallel parallel) { return parallel == Parallel::kThread || parallel == Parallel::kThreadY; }

// More copies of a loop's body than an instruction cache holds, and seconds of a compiler's time.
constexpr int64_t kMaxUnroll = 1024;
// A split by more only makes iterations without an element.
constexpr int64_t kMaxFactor = int64_t{1} << 40;
// A shared value is far smaller.
constexpr int64_t kMaxPad = 1 << 20;
// More copies of a shared value than fit shared memory usefully.
constexpr int kMaxStages = 64;

// Where a value is kept from where it is computed to where it is used. kShared: one copy for the threads of a block.
enum class Memory : uint8_t { kRegister, kShared };

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
// Two axes x and y of one extent, a power of two, become x and x ^ y: y runs in another order for every x.
struct Swizzle {
  int x;
  int y;
  bool operator==(const Swizzle&) const = default;
};
using Transform = std::variant<Split, Merge, Reorder, Insert, Drop, Swizzle>;

struct LoopAxis {
  int64_t extent = 1;
  Parallel parallel = Parallel::kSerial;
  bool operator==(const LoopAxis&) const = default;
};

// Root axis `axis` is ragged: it has only so many elements as value `extents` says at the indices of root axes `by`.
struct Ragged {
  int axis;
  ValueId extents;
  std::vector<int> by;
  int combined = 0;  // the value has one axis for it and so many of `by`, the last ones
  bool operator==(const Ragged&) const = default;
};

// A value is computed over its root axes: its own axes, or for a reduction those of its operand, some of which are
// reduced; what combine makes of a nested value over the axes of that. A reduction in parts begins with the split of
// its first reduced axis into (part, element of the part), in turn (element of the part, part); the part is the value's
// axis.
struct Domain {
  std::vector<int64_t> logical;       // extents of the root axes
  std::vector<bool> reduced;          // which of them are reduced; empty for none
  bool in_parts = false;              // also of a scan in parts, and of what spreads over parts
  std::vector<Ragged> ragged = {};    // of a nested value, and of what is made of one; by axis
  int scanned = -1;                   // the root axis along which a value is carried; -1 for none
  std::vector<Transform> transforms;  // in the order they were made
  std::vector<LoopAxis> loop;         // what results
  int inline_at = 0;                  // outer loop axes that the value shares with its consumers
  Memory memory = Memory::kRegister;
  // Of a shared value: the axes it is stored over, as nodes of its tree, slowest first; empty for its own loop axes.
  // Rows along the last one are `pad` elements further apart than they are long.
  std::vector<int> storage;
  int64_t pad = 0;
  // Of a shared value that is copied in bulk: how many copies of its storage there are, used in turn by the iterations
  // of the innermost loop that it is inlined in, and how many iterations ahead they are filled.
  int stages = 1, prefetch = 0;
  bool operator==(const Domain&) const = default;
};

struct Schedule {
  std::vector<Domain> domains;  // by ValueId
  bool operator==(const Schedule&) const = default;
};

// Every value on its root axes (a reduction in parts with its split), serial, shared with nobody.
Schedule unscheduled(const ir::Fusion& fusion);

// Edits the schedule of one fusion. Each call checks its arguments, throws UserError and then changes nothing. Axes may
// be negative, counting from the end.
class Scheduler {
 public:
  explicit Scheduler(const ir::Fusion& fusion);
  Scheduler(const ir::Fusion& fusion, Schedule start);

  void split(ValueId value, int axis, int64_t factor, bool inner = true);
  void merge(ValueId value, int axis);
  // Extends the axis at its end to the next multiple of `multiple`; the iterations added have no element. The same as a
  // split by that extent, with a remainder, and a merge of its two axes, and recorded so.
  void pad(ValueId value, int axis, int64_t multiple);
  // `order` lists all loop axes: new axis i is old axis order[i].
  void reorder(ValueId value, const std::vector<int>& order);
  // Axis y becomes x ^ y.
  void swizzle(ValueId value, int x, int y);
  void parallelize(ValueId value, int axis, Parallel parallel);

  // Replays the transforms of `reference` on every other value that is computed or an output. Axes correspond through
  // the ops between the two values; an output that no op connects with the reference must have its shape. A value gets
  // a loop also for an axis that it lacks; it runs once there unless it is inlined in it. With `selected`, only those.
  // `partly`: also values with axes that the reference lacks, such as folded ones, which stay behind all others; what
  // folds the parts of the reference has the loops of the axes that it has.
  void transform_like(ValueId reference, const std::vector<ValueId>& selected = {}, bool partly = false);
  // The values that transform_like(reference) can give its loops, but the reference.
  std::vector<ValueId> alike(ValueId reference);
  // Copies the parallel types of `reference` to every such value with the same loop extents. With `position`, only
  // those of its outer loops, to values with the same outer extents; with `types`, only these types. `partly`: also to
  // the outer loops of values that transform_like gives others behind.
  void parallelize_like(ValueId reference, const std::vector<ValueId>& selected = {},
                        std::optional<int> position = std::nullopt, const std::vector<Parallel>& types = {},
                        bool partly = false);

  // Computes the value inside the outer `position` loops of its consumers; with `best_effort`, of those loops that it
  // has in common with them.
  void inline_at(ValueId value, int position, bool best_effort = false);
  // Inlines every computed value as deep as its loops agree with those of all its consumers and it is computed no more
  // often than needed: not into loops over axes that it lacks, nor a reduction into the loops that it reduces, nor so
  // deep that a consumer would run before a value that it needs is complete. With `selected`, only those.
  void inline_most(const std::vector<ValueId>& selected = {});
  // kShared needs a CUDA target.
  void set_memory(ValueId value, Memory memory);
  // Stores a shared value over its present loop axes from `first_axis` on, whatever becomes of them afterwards. `pad`
  // elements between rows keep columns off one memory bank.
  void set_allocation(ValueId value, int first_axis, int64_t pad);
  // Gives a shared value `stages` copies of its storage: while the threads work on one iteration of the loop that it is
  // inlined in, bulk copies fill those of the `prefetch` next ones. 1 <= prefetch < stages; 1 stage and prefetch 0: one
  // copy, filled when it is needed.
  void circular_buffer(ValueId value, int stages, int prefetch);

  const Schedule& schedule() const { return schedule_; }

 private:
  Domain& domain(ValueId value, const char* call);
  int checked_axis(ValueId value, int axis, const char* call) const;
  void require_loops(ValueId value, const char* call) const;
  void apply(ValueId value, const Transform& transform);
  int common_loops(ValueId value) const;
  int useful_loops(const ir::Op& op) const;

  const ir::Fusion& fusion_;
  std::vector<std::vector<ValueId>> consumers_;  // by ValueId: the results computed from it
  Schedule schedule_;
};

// Throws UserError unless every loop axis derives from logical axes. On its way a schedule may inline a value in loops
// that its consumers have no longer or not yet; it prints and parses all the same.
void verify(const ir::Fusion& fusion, const Schedule& schedule);
// Throws UserError unless every value agrees with its consumers in the loops that it is inlined in; after verify().
void verify_inlined(const ir::Fusion& fusion, const Schedule& schedule);

//   schedule {
//     t1[4096,512]: merge(0) split(0,16) split(0,outer 64) -> [64 task, 2048, 16 vector] inline 3
//     t2[32]: split(0,4) -> [8, 4 thread] shared (1,2 pad 1)
//     t3[64,512]: -> [64, 512 bulk] inline 1 shared circular 3 prefetch 2
//   }
// Values that are as in unscheduled() are not listed. parse(f, print(f, s)) == s.
std::string print(const ir::Fusion& fusion, const Schedule& schedule);
Schedule parse(const ir::Fusion& fusion, std::string_view text);
// "serial", "unroll", "vector", "task", "block", "block_y", "cluster", "thread", "thread_y", "bulk".
std::string_view name(Parallel parallel);
// "register", "shared".
std::string_view name(Memory memory);

}  // namespace jf::schedule
