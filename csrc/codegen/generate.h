// Loop programs in, a source that a compiler takes out.
#pragma once

#include <string>
#include <vector>

#include "base/target.h"
#include "loops/kernel.h"
#include "runtime/source.h"

namespace jf::codegen {

// One source for all kernels; entry i is kernel i. On the CPU a kernel is
// `void name(void* const* buffers, long task, bool past_caches)`, on CUDA a __global__ function of the buffers. Both
// take them in the order of Kernel::buffers, or of `parameters` where given: numbers of all buffers that are not
// shared. None may overlap another.
runtime::Source generate(const std::vector<loops::Kernel>& kernels, const Target& target,
                         const std::vector<int>& parameters = {});

// The lines that include what the kernels need.
std::string includes(const std::vector<loops::Kernel>& kernels, const Target& target);

}  // namespace jf::codegen
