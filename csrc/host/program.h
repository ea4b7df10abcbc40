// A host program: the steps that one custom call runs, as data. Every grid is fixed and every buffer is a reference, so
// that running decides nothing and XLA may capture and replay it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/parameters.h"
#include "base/target.h"
#include "grouped/cuda/grouped_cuda.h"
#include "grouped/problem.h"
#include "host/facts.h"
#include "host/tile_tail.h"
#include "host/tuning.h"
#include "ir/fusion.h"
#include "loops/kernel.h"
#include "schedule/schedule.h"

namespace jf::host {

// Where a step finds a buffer: the call's input or output number, or a byte offset in the workspace.
enum class BufferKind : uint8_t { kInput, kOutput, kWorkspace };
struct BufferRef {
  BufferKind kind;
  int64_t index;
  bool operator==(const BufferRef&) const = default;
};

// A generated kernel; buffers in the order of kernel.buffers.
struct KernelStep {
  loops::Kernel kernel;
  std::vector<BufferRef> buffers;
};
// A hand-written grouped kernel; buffers lhs, rhs, extents[, starts][, scales of lhs, of rhs], out[, scratch memory of
// CUDA kernels], then those of the epilogue, or all of the tail's kernel, if there is one; the product, which is no
// array then, is named as out.
struct GroupedStep {
  std::string name;
  grouped::Problem problem;
  std::vector<BufferRef> buffers;
  std::optional<grouped::RowEpilogue> epilogue = {};
  std::optional<TileTail> tail = {};
  Parameters parameters = {};  // of CUDA kernels, that somebody chose
};
// Another hand-written CUDA kernel, which takes its buffers, its maps and these integers.
struct WrittenStep {
  std::string name;
  grouped::CudaKernel kernel;
  std::vector<int64_t> scalars;
  std::vector<BufferRef> buffers;
};
using Step = std::variant<KernelStep, GroupedStep, WrittenStep>;
// What a generated kernel was lowered from.
struct Scheduled {
  ir::Fusion fusion;
  schedule::Schedule schedule;
};

struct Program {
  std::string name;
  std::string text;                  // what it was built from, for reports; empty where only people ask
  std::vector<int64_t> input_bytes;  // sizes of the call's buffers
  std::vector<int64_t> output_bytes;
  int64_t workspace_bytes = 0;           // values between segments that this target's kernels use
  int64_t portable_workspace_bytes = 0;  // enough on any target of the platform, and the same on all
  std::vector<Step> steps;
  std::string segments;  // the plan and the schedules as text, for people
  std::string schedule;
  std::vector<Scheduled> scheduled;  // of every KernelStep, in order, to go on from
  std::vector<KernelFacts> facts;    // of every step, in order, and of segments without elements
  std::vector<std::string> outputs;  // what these call the results, where a plan has names of its own for them
};

// Plans, schedules and lowers. Pure: equal arguments give equal programs, in every process. Throws UserError for a
// tuning of kernels or with parameters that the program does not have.
Program build(const ir::Fusion& fusion, const Target& target, const Tuning& tuning = {});

std::string print(const Program& program);

}  // namespace jf::host
