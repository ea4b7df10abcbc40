// The reduction strategy: loops over the kept axes, inside them loops over the axes that the reductions fold, gone
// along once for every phase (plan/phases.h).
//
// propose_reduction() decides with numbers, reduction_kernel() writes the fusion and the schedule that they describe.
// Any parameters give the same result; a test or a person may force others.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "base/target.h"
#include "ir/fusion.h"
#include "plan/phases.h"
#include "plan/traffic.h"
#include "schedule/schedule.h"

namespace jf::plan {

// Loops are those of Traffic.
struct CpuReduction {
  int lane_loop = 0;  // the loop that runs in lanes
  int64_t lanes = 1;  // values of a register, a power of two
  int64_t chunk = 1;  // registers side by side, where lane_loop is kept
  int64_t rows = 1;   // side by side, where others fold across them
  Keep keep = Keep::kNothing;
  int64_t tasks = 1;  // calls that other threads may take
  bool operator==(const CpuReduction&) const = default;
};
// What the threads x of a block run along: one row that is folded, many rows, columns of which each is folded, or runs
// of a row, which are folded by themselves, too.
enum class ThreadsAlong : uint8_t { kRow, kRows, kColumns, kRuns };
std::string_view name(ThreadsAlong along);
struct CudaReduction {
  ThreadsAlong along = ThreadsAlong::kRow;
  int lane_loop = 0;      // the loop of the vector accesses, and of the threads x unless they are along rows
  int64_t lanes = 1;      // elements of a vector access
  int64_t threads = 1;    // x: of a row, rows, columns, or of a run
  int64_t threads_y = 1;  // rows of a block; for columns, parts of each column; runs
  int64_t unroll = 1;     // vectors of a thread along what is folded; runs of a thread
  Keep keep = Keep::kNothing;
  // More than 1: the inputs' rows come by bulk copies to so many stages of shared memory, all but one of them ahead of
  // the row that the block works on (sm_90, along=row). The grid then has `blocks` blocks, unless sums across the rows
  // give it one for each of their parts.
  int64_t stages = 1, blocks = 1;
  bool bulk_store = false;    // with stages: results go through shared memory, too
  int64_t cluster = 1;        // along=row: blocks that share a row, of which each keeps a part (sm_90)
  bool keep_columns = false;  // inputs that are the same for every row stay in registers while a block goes along rows
  bool keep_wide = false;     // what inputs are converted to stays in registers from phase to phase
  // Blocks of a multiprocessor whose registers must have room; 1: the compiler decides, which makes room for as many as
  // there are threads for and then has few accesses of a thread on their way.
  int64_t at_once = 1;
  bool operator==(const CudaReduction&) const = default;
};
using ReductionParameters = std::variant<CpuReduction, CudaReduction>;

// What the parameters' loops are.
Traffic reduction_traffic(const ir::Fusion& segment);
ReductionParameters propose_reduction(const ir::Fusion& segment, const Target& target);
// "cuda along=row lane_loop=1 lanes=4 threads=256 threads_y=1 unroll=4 keep=rows"
std::string print(const ReductionParameters& parameters);

struct ReductionKernel {
  ir::Fusion fusion;  // the segment's inputs and outputs in their order
  schedule::Schedule schedule;
};
ReductionKernel reduction_kernel(const ir::Fusion& segment, const ReductionParameters& parameters);

}  // namespace jf::plan
