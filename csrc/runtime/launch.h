// What a host program does on a stream. Nothing here allocates, waits or asks the device: XLA captures these calls in a
// graph.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/driver.h"

namespace jf::runtime {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// `arguments[i]` points to the kernel's i-th argument; the values are copied before the call returns. The names
// are for errors. `cluster`: blocks of one along x, 1 where the kernel itself says how many. `together`: all blocks run
// at once, and the launch fails where the device cannot; such a launch says nothing of clusters.
void launch(std::string_view program, std::string_view entry, CuKernel kernel, Dim3 grid, Dim3 block, int cluster,
            int shared_bytes, bool together, CuStream stream, void** arguments);

// So many 32-bit words of the device become `word`.
void fill_words(void* words, unsigned word, int64_t count, CuStream stream);

}  // namespace jf::runtime
