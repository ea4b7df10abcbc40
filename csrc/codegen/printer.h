// Prints a loop program as C++ text, the same walk for every language.
#pragma once

#include <string>
#include <vector>

#include "codegen/dialect.h"
#include "loops/kernel.h"

namespace jf::codegen {

// The definition of the kernel's function. Equal kernels give equal bytes. It takes the buffers in their own order, or
// in the order of `parameters`.
std::string print_kernel(const loops::Kernel& kernel, const Dialect& dialect, const std::vector<int>& parameters = {});

}  // namespace jf::codegen
