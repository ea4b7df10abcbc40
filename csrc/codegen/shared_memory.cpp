#include "codegen/shared_memory.h"

#include <algorithm>

#include "base/error.h"

namespace jf::codegen {
namespace {

using namespace loops;

constexpr int64_t kMostStaticBytes = 48 * 1024;
constexpr int64_t kAlignment = 128;
constexpr int kWarp = 32;
// A fold of more goes in rounds.
constexpr int64_t kMostScratchBytes = 16 * 1024;

}  // namespace

int64_t scratch_bytes(const Kernel& kernel, const Combine& combine) {
  const int x = kernel.block, y = kernel.block_y;
  JF_CHECK(x % kWarp == 0 || kWarp % x == 0, "kernel ", kernel.name, " folds over ", x,
           " threads; expected a power of two up to 32 or a multiple of 32");
  // Whole warps, or a single one that shuffles can fold.
  const bool even = x * y % kWarp == 0 || kWarp % (x * y) == 0;
  const int warps = (x * y + kWarp - 1) / kWarp;
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
  const Array& array = kernel.arrays.at(combine.array);
  const int64_t one = parts * slots * size_of(compute_dtype(array.dtype));
  const int64_t values = array.size * (combine.lanes ? 1 : kernel.width);
  return one * std::min(values, std::max<int64_t>(1, kMostScratchBytes / one));
}

SharedMemory shared_memory(const Kernel& kernel) {
  SharedMemory memory;
  for_each(kernel.body, [&](const auto& node) {
    if constexpr (std::is_same_v<std::decay_t<decltype(node)>, Combine>) {
      if (node.threads || node.threads_y) memory.scratch = std::max(memory.scratch, scratch_bytes(kernel, node));
    }
  });
  memory.bytes = memory.scratch;
  for (const Buffer& buffer : kernel.buffers) {
    if (buffer.shared_size > 0) {
      const int64_t offset = (memory.bytes + kAlignment - 1) / kAlignment * kAlignment;
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
