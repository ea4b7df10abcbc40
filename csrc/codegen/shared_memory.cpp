#include "codegen/shared_memory.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"
#include "base/target.h"

namespace jf::codegen {
namespace {

using namespace loops;

constexpr int64_t kMostStaticBytes = 48 * 1024;
// A fold of more goes in rounds.
constexpr int64_t kMostScratchBytes = 16 * 1024;
// Larger ones share theirs.
constexpr int64_t kSmallScratchBytes = 1024;
constexpr int64_t kScratchAlignment = 8;
// Of codegen/cuda_cluster.cuh.
constexpr int64_t kClusterSlots = 2;

int64_t values_of(const Kernel& kernel, const Combine& combine) {
  int64_t values = 0;
  for (int array : combine.arrays) values += kernel.arrays.at(array).size * (combine.lanes ? 1 : kernel.width);
  return values;
}

// The same case distinction as codegen/cuda_fold_threads.cuh.
int64_t scratch_bytes(const Kernel& kernel, const Combine& combine) {
  const int64_t x = kernel.block, y = kernel.block_y;
  JF_CHECK(x % kWarp == 0 || kWarp % x == 0, "kernel ", kernel.name, " folds over ", x,
           " threads; expected a power of two up to ", kWarp, " or a multiple of ", kWarp);
  // Whole warps, or a single one that shuffles can fold.
  const bool even = x * y % kWarp == 0 || kWarp % (x * y) == 0;
  const int64_t warps = divide_up(x * y, kWarp);
  int64_t parts = 1, slots = 1;  // what a result is folded from, after the shuffles; results that stay apart
  if (combine.threads_y && !combine.threads) {
    parts = even && x < kWarp ? warps : y;
    slots = x;
  } else if (combine.threads_y) {
    parts = even ? warps : y;
    slots = even ? 1 : x;
  } else if (combine.threads && x > kWarp) {
    parts = x / kWarp;
    slots = y;
  }
  if (parts == 1) return 0;
  const int64_t one = parts * slots * size_of(compute_dtype(kernel.arrays.at(combine.arrays[0]).dtype));
  return one * std::min(values_of(kernel, combine), std::max<int64_t>(1, kMostScratchBytes / one));
}

// Of codegen/cuda_scan_threads.cuh.
int64_t scratch_bytes(const Kernel& kernel, const ScanThreads& scan) {
  const Array& array = kernel.arrays.at(scan.array);
  // What a linear recurrence has of a run are two numbers.
  const int64_t bytes = (scan.factors < 0 ? 1 : 2) * size_of(compute_dtype(array.dtype));
  const int64_t x = kernel.block, y = kernel.block_y;
  if (scan.threads) return x <= kWarp ? 0 : array.size / scan.run * (x / kWarp) * y * bytes;
  const int64_t one = x * y * bytes;
  return one * std::min<int64_t>(kernel.width, std::max<int64_t>(1, kMostScratchBytes / one));
}

bool over_threads(const Combine& combine) { return combine.threads || combine.threads_y || combine.cluster; }

class Assignment {
 public:
  Assignment(const Kernel& kernel, SharedMemory& memory) : kernel_(kernel), memory_(memory) {
    visit(kernel.body);
    for (SharedMemory::Scratch& scratch : memory.folds) {
      if (scratch.bytes > kSmallScratchBytes) shared_ = std::max(shared_, scratch.bytes);
    }
    memory.scratch = round_up(shared_, kScratchAlignment);
    for (SharedMemory::Scratch& scratch : memory.folds) {
      if (scratch.bytes > kSmallScratchBytes) continue;
      scratch.offset = memory.scratch;
      memory.scratch += round_up(scratch.bytes, kScratchAlignment);
    }
    if (memory.cluster_words == 0) return;
    memory.cluster = memory.scratch;
    memory.scratch += kClusterSlots * (8 + round_up(4 * kernel.cluster * memory.cluster_words, kScratchAlignment));
  }

 private:
  // How often the threads surely meet in one run of these statements.
  int meetings(const Body& body) const {
    int count = 0;
    for (const Stmt& stmt : body) {
      if (const auto* loop = std::get_if<For>(&stmt.node)) count += meetings(loop->body);
      const auto* combine = std::get_if<Combine>(&stmt.node);
      const bool fold =
          combine != nullptr && over_threads(*combine) && (combine->cluster || scratch_bytes(kernel_, *combine) > 0);
      const auto* scan = std::get_if<ScanThreads>(&stmt.node);
      count += fold || std::holds_alternative<Sync>(stmt.node);
      count += scan != nullptr && scratch_bytes(kernel_, *scan) > 0 ? 2 : 0;
    }
    return count;
  }
  // Between two runs of a fold in a body that runs or does not, the others in it have been run, too.
  void some_runs(const Body& body) {
    const bool outer = alone_;
    alone_ = alone_ && meetings(body) < 2;
    visit(body);
    alone_ = outer;
  }
  void visit(const Body& body) {
    for (const Stmt& stmt : body) std::visit([&](const auto& node) { (*this)(node); }, stmt.node);
  }

 public:
  void operator()(const For& loop) {
    const bool outer = alone_;
    const bool repeats = loop.parallel == Parallel::kSerial || loop.parallel == Parallel::kUnroll;
    if (repeats) alone_ = meetings(loop.body) < 2;
    visit(loop.body);
    alone_ = outer;
  }
  void operator()(const Guard& guard) { some_runs(guard.body); }
  void operator()(const If& statement) { some_runs(statement.body); }
  void operator()(const Combine& combine) {
    if (!over_threads(combine)) return;
    const int64_t bytes = scratch_bytes(kernel_, combine);
    memory_.folds.push_back({0, bytes, bytes > kSmallScratchBytes || alone_});
    if (!combine.cluster) return;
    const int64_t size = size_of(compute_dtype(kernel_.arrays.at(combine.arrays[0]).dtype));
    memory_.cluster_words = std::max(memory_.cluster_words, values_of(kernel_, combine) * divide_up(size, 4));
  }
  void operator()(const ScanThreads& scan) { memory_.folds.push_back({0, scratch_bytes(kernel_, scan), true}); }
  template <class Other>
  void operator()(const Other& other) {
    if constexpr (requires { other.body; }) visit(other.body);
  }

 private:
  const Kernel& kernel_;
  SharedMemory& memory_;
  int64_t shared_ = 0;
  bool alone_ = false;  // in a loop in which the threads may meet but once
};

}  // namespace

SharedMemory shared_memory(const Kernel& kernel) {
  SharedMemory memory;
  Assignment(kernel, memory);
  memory.bytes = memory.scratch;
  for (const Buffer& buffer : kernel.buffers) {
    if (buffer.shared_size > 0) {
      const int64_t offset = round_up(memory.bytes, buffer.alignment);
      memory.alignment = std::max(memory.alignment, buffer.alignment);
      memory.offsets.push_back(offset);
      memory.bytes = offset + buffer.shared_size * size_of(buffer.dtype);
    } else {
      memory.offsets.push_back(-1);
    }
  }
  memory.dynamic = memory.bytes > kMostStaticBytes;
  return memory;
}

int dynamic_shared_bytes(const Kernel& kernel) {
  const SharedMemory memory = shared_memory(kernel);
  return memory.dynamic ? static_cast<int>(memory.bytes) : 0;
}

}  // namespace jf::codegen
