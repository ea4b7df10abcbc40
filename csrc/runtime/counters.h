// How much work compiling and loading has done in this process; tests assert on it.
#pragma once

#include <cstdint>

namespace jf::runtime {

struct Counters {
  int64_t compiled_host = 0;   // started a C++ compiler
  int64_t compiled_cuda = 0;   // called NVRTC
  int64_t disk_hits = 0;       // found in the folder of an earlier process
  int64_t memory_hits = 0;     // found in this process, or waited for a compile under way
  int64_t loaded_modules = 0;  // shared objects and CUDA libraries loaded
};

Counters counters();
// count(&Counters::disk_hits)
void count(int64_t Counters::* counter);

}  // namespace jf::runtime
