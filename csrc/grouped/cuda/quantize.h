// The kernel that stores matrices of floats as 8-bit floats with scales, read once: compute capability 9.0 alone.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/target.h"
#include "grouped/cuda/grouped_cuda.h"

namespace jf::grouped {

// Rows and columns of the result that share a scale, where they do.
constexpr int64_t kScaleBlock = 128;

struct Quantization {
  DType in = DType::kBF16;
  int64_t matrices = 0, rows = 0, columns = 0;
  // A scale for each column, which is a row of the result; else for each kScaleBlock x kScaleBlock elements.
  bool of_columns = false;
  bool transpose = false;  // the result is [matrices, columns, rows], each row filled up with zeros

  // Bytes of a row of the result.
  int64_t pitch() const;
};

// Why the kernel does not take the matrices; empty where it does.
std::string why_not_quantize(const Quantization& q, const Target& target);

struct QuantizeConfig {
  int rows = 0;    // of a block of threads
  int blocks = 1;  // of a cluster, which has all rows of some columns
};
QuantizeConfig choose_quantize(const Quantization& q, const Target& target);
// "quantize rows=896 cluster=8"
std::string print(const QuantizeConfig& config);

// Arguments: the matrices, the elements of the result, the scales, a map, then rows, columns, pitch. Throws UserError
// with why_not_quantize.
CudaKernel quantize_kernel(const Quantization& q, const Target& target);

}  // namespace jf::grouped
