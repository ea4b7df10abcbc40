// What a host program does on a stream. Nothing here allocates, waits or asks the device: XLA captures these calls in a
// graph.
#pragma once

#include <string_view>

#include "runtime/driver.h"

namespace jf::runtime {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// `arguments[i]` points to the kernel's i-th argument; the values are copied before the call returns. The names
// are for errors.
void launch(std::string_view program, std::string_view entry, CuKernel kernel, Dim3 grid, Dim3 block, int shared_bytes,
            CuStream stream, void** arguments);

// A 32-bit word of the device becomes zero.
void clear_word(void* word, CuStream stream);

}  // namespace jf::runtime
