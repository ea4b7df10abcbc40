// The arrays that a kernel's outputs are: outputs that `place` makes parts of a larger array are that array together.
#pragma once

#include <vector>

#include "ir/fusion.h"

namespace jf::ir {

// `outputs`: one value, or neighbours among the outputs that are parts of an array of `shape`. Where they do not fill
// it, other kernels store the rest.
struct Result {
  std::vector<ValueId> outputs;
  std::vector<int64_t> shape;
  int64_t missing = 0;  // elements
};
// In the order of the outputs.
std::vector<Result> results(const Fusion& fusion);

// The outputs, with its operands instead of each concat that no op reads.
std::vector<ValueId> parts_of_outputs(const Fusion& fusion);
// The fusion with those as outputs.
Fusion with_parts_as_outputs(Fusion fusion);
// The other way round. Throws UserError where parts do not fill their array.
Fusion with_parts_joined(Fusion fusion);

}  // namespace jf::ir
