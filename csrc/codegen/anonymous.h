// The text that is compiled: a kernel without the user's names, so that kernels equal up to names compile once.
#pragma once

#include <vector>

#include "base/target.h"
#include "loops/kernel.h"
#include "runtime/source.h"

namespace jf::codegen {

struct Anonymous {
  runtime::Source source;       // one entry: "reduction_" or "pointwise_" and the hash of the text, for profilers
  std::vector<int> parameters;  // parameter i of the entry is buffer parameters[i] of the kernel
};
// Buffers and arrays go by the order in which the kernel first uses them.
Anonymous generate_anonymous(loops::Kernel kernel, const Target& target);

}  // namespace jf::codegen
