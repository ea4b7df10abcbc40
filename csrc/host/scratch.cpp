#include "host/scratch.h"

#include <sys/mman.h>

#include <mutex>
#include <vector>

#include "base/error.h"

namespace jf::host {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

struct Block {
  std::byte* data;
  size_t capacity;
};

struct FreeBlocks {
  std::mutex mutex;
  std::vector<Block> blocks;
};

// Leaked on purpose: calls may still run while static objects are destroyed.
FreeBlocks& free_blocks() {
  static FreeBlocks& blocks = *new FreeBlocks;
  return blocks;
}

}  // namespace

Scratch::Scratch(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  Block block{nullptr, 0};
  {
    std::lock_guard lock(free_blocks().mutex);
    auto& blocks = free_blocks().blocks;
    // The smallest that fits; otherwise the largest is replaced, so that few blocks stay.
    auto best = blocks.end();
    for (auto it = blocks.begin(); it != blocks.end(); ++it) {
      if (best == blocks.end() || (it->capacity >= bytes ? best->capacity < bytes || it->capacity < best->capacity
                                                         : best->capacity < bytes && it->capacity > best->capacity)) {
        best = it;
      }
    }
    if (best != blocks.end()) {
      block = *best;
      blocks.erase(best);
    }
  }
  if (block.capacity < bytes) {
    if (block.data) munmap(block.data, block.capacity);
    block.capacity = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* data = mmap(nullptr, block.capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw UserError(cat("[execute] no memory for ", bytes, " bytes of scratch"));
    madvise(data, block.capacity, MADV_HUGEPAGE);
    block.data = static_cast<std::byte*>(data);
  }
  data_ = block.data;
  capacity_ = block.capacity;
}

Scratch::~Scratch() {
  if (!data_) return;
  std::lock_guard lock(free_blocks().mutex);
  free_blocks().blocks.push_back({data_, capacity_});
}

}  // namespace jf::host
