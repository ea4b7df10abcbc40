// What the threads of a block share: a kernel's shared buffers, and the scratch of its folds over threads.
#pragma once

#include <cstdint>
#include <vector>

#include "loops/kernel.h"

namespace jf::codegen {

struct SharedMemory {
  // The scratch of a fold: small ones have their own, so that the threads need not meet before the next fold.
  struct Scratch {
    int64_t offset, bytes;
    bool again;  // it is written again before the threads meet elsewhere
  };
  std::vector<int64_t> offsets;  // of every buffer, in bytes; -1 for parameters
  std::vector<Scratch> folds;    // of every Combine over threads and ScanThreads, in the order of the text
  int64_t scratch = 0;           // bytes of all scratch, which comes first
  // Where other blocks of a cluster send what they fold, in the scratch; words of 4 bytes that each of them sends at
  // the most.
  int64_t cluster = 0, cluster_words = 0;
  int64_t bytes = 0;        // altogether
  int64_t alignment = 128;  // of all of it
  // Arrays of a fixed size may not take more than 48 KiB; beyond that a launch gives the bytes.
  bool dynamic = false;
};
SharedMemory shared_memory(const loops::Kernel& kernel);
// The bytes that a launch of the kernel must give.
int dynamic_shared_bytes(const loops::Kernel& kernel);

}  // namespace jf::codegen
