// The kernel of softmax over the rows of groups that reads every row once: compute capability 9.0 or later.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/parameters.h"
#include "base/target.h"
#include "grouped/cuda/grouped_cuda.h"

namespace jf::grouped {

// x [rows, columns], extents [groups] -> softmax over the rows of each group, or its logarithm, [rows, columns]
struct GroupSoftmax {
  DType dtype = DType::kBF16;
  bool log = false;
  int64_t rows = 0, columns = 0, groups = 0;
};

// As group_softmax.cuh describes them.
struct SoftmaxConfig {
  int64_t rows = 0, bytes = 0;  // of a tile; bytes of a row
  int64_t slots = 0;            // tiles that a block holds
  int64_t run = 0, split = 0;   // most tiles of a run, and of one of several of a strip

  bool operator==(const SoftmaxConfig&) const = default;
};

SoftmaxConfig choose_softmax(const GroupSoftmax& s);
// By the names of the fields; throws UserError for others.
SoftmaxConfig edited(SoftmaxConfig config, const Parameters& given);
// "group softmax tile=128x256 slots=6 run=4 split=3"
std::string print(const SoftmaxConfig& config);

// Why the kernel does not take it; empty where it does. The rest is for what it takes.
std::string why_not_softmax(const GroupSoftmax& s, const SoftmaxConfig& config, const Target& target);

// Of the scratch memory, which is all ones when the kernel starts; the same on all targets.
int64_t softmax_scratch_bytes(const GroupSoftmax& s, const SoftmaxConfig& config);

// Arguments: x, extents, the result, the scratch memory, then softmax_scalars. Throws UserError with why_not_softmax.
CudaKernel softmax_kernel(const GroupSoftmax& s, const SoftmaxConfig& config, const Target& target);
std::vector<int64_t> softmax_scalars(const GroupSoftmax& s, const SoftmaxConfig& config);

}  // namespace jf::grouped
