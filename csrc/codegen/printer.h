// Prints a loop program as C++ text, the same walk for every language.
#pragma once

#include <string>

#include "codegen/dialect.h"
#include "loops/kernel.h"

namespace jf::codegen {

// The definition of the kernel's function. Equal kernels give equal bytes.
std::string print_kernel(const loops::Kernel& kernel, const Dialect& dialect);

}  // namespace jf::codegen
