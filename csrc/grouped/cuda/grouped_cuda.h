// Chooses, instantiates and places the CUDA kernels of a grouped matrix product. Text and numbers only: nothing here
// needs a GPU or a CUDA header. Kernels need compute capability 8.0 or later; hopper.h has those of 9.0 alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/parameters.h"
#include "base/target.h"
#include "grouped/problem.h"
#include "runtime/tensor_map.h"

namespace jf::grouped {

struct CudaConfig {
  bool tensor_cores = false;  // else plain multiply-adds, with stages and warps fixed: see fma_config
  int tile_m = 0, tile_n = 0, tile_k = 0;
  int stages = 0;
  int warps_m = 0, warps_n = 0;

  bool operator==(const CudaConfig&) const = default;
};

// "tensor_cores=1 tile=128x128x64 stages=3 warps=2x2"
std::string print(const CudaConfig& config);

// Whether the tensor-core kernels take these element types.
bool has_tensor_cores(const Problem& problem);

// The configuration of the multiply-add kernel, which takes every arithmetic element type.
CudaConfig fma_config();

// The configuration by an analytic model. m decides only the tile, one of five: the kernels of all m are few.
CudaConfig choose(const Problem& problem, const Target& target);

// Boxes of one of a kernel's buffers.
struct CudaMap {
  int buffer;  // its number among the arguments
  runtime::TensorLayout layout;
};

// What becomes of the sums of a product of kRows before they are stored, as hopper_epilogue.cuh describes it; or of
// kContraction, one by one: contraction_epilogue.cuh.
struct RowEpilogue {
  std::string text;                  // of struct Epilogue and what it includes
  std::vector<std::string> members;  // their types, pointers; arguments of the kernel
  int sums = 1;                      // of an element of the result
  int64_t n = 0;                     // columns of the result
  std::vector<int64_t> first;        // the columns of the product that column 0 of it is made of
  DType out = DType::kF32;           // its type
  // An array [m, columns] of 16-bit floats that it reads at the places of the result: by a tensor map.
  struct Tile {
    int member;
    int64_t columns;
    DType dtype;
  };
  std::vector<Tile> tiles;  // one, or two where there are several results
  // With several results, each n columns of an array [m, columns] from `first` on, all of one 16-bit type; that of
  // the first is the product's `out`. The others follow the members.
  struct Result {
    int64_t columns, first;
  };
  std::vector<Result> results;
  bool keeps = false;  // the last of them are the sums as they are
  // Whether it also adds up a number of every place over the columns of a row, for which partial sums follow the
  // results: float32 [partial_sums(n), m].
  bool folds = false;

  bool several() const { return !results.empty(); }
};

// Partial sums of a row of n columns that an epilogue of several results leaves.
int64_t partial_sums(int64_t n);

// Bytes of scratch memory that a kernel of the problem may ask for; the same for all targets.
int64_t cuda_scratch_bytes(const Problem& problem);

// 32-bit words at the beginning of a buffer, its number among the arguments, all of whose bits are 1 when a kernel
// starts.
struct CudaOnes {
  int buffer;
  int64_t words;
};

// One kernel launch. Arguments: lhs, rhs, extents, starts, scales and factors (only if the problem has them), out, the
// scratch memory (only if `counts` or `shares`), the members of an epilogue, then `maps`, then m, k, n (of the result),
// groups and rows as 64-bit integers. Base addresses are aligned to 16 bytes. With grid == 0 the result is empty:
// launch nothing.
struct CudaKernel {
  std::string entry;
  std::string instantiation;  // source text that includes kernel headers by their path below csrc/
  bool counts = false;        // takes scratch memory, whose first 32-bit word is zero when it starts
  bool shares = false;        // would, but is given null: its blocks share the work evenly, and nothing is made zero
  bool together = false;      // its blocks wait for each other: all of them run at once, or none
  std::optional<CudaOnes> ones = {};
  std::vector<CudaMap> maps;
  int64_t grid = 0;  // blocks, along x
  int cluster = 1;   // blocks of a cluster, where the launch says so and not the text
  int block = 0;
  int shared_bytes = 0;  // dynamic; above 48 KiB the launcher must opt in
};

// Throws UserError for element types or sizes that no kernel takes, and for a configuration that does not fit the
// target.
CudaKernel cuda_kernel(const Problem& problem, const CudaConfig& config, const Target& target);

// The kernel that the target runs best, or by the parameters that measurements chose.
CudaKernel cuda_kernel(const Problem& problem, const Target& target, const Parameters& given = {});
// Those that it has, with `given` ones, and all others that it could have; none where nothing is to be chosen.
// `epilogue` may be null.
Parameters fields_of(const Problem& problem, const Target& target, const RowEpilogue* epilogue,
                     const Parameters& given);
std::vector<Parameters> alternatives(const Problem& problem, const Target& target, const RowEpilogue* epilogue);
// Why no kernel of the problem takes an epilogue, or not this one, which may be null; empty where one does.
std::string why_no_epilogue(const Problem& problem, const RowEpilogue* epilogue, const Target& target);
CudaKernel cuda_kernel(const Problem& problem, const RowEpilogue& epilogue, const Target& target,
                       const Parameters& given);
// Throws UserError where a scaled product has no kernel: its callers convert operands instead.
void require_kernel(const Problem& problem, const Target& target);
// Which one that is, and why not another, for people: "wgmma, tile=192x128x64 stages=4 cluster=2".
// `epilogue` may be null.
std::string describe(const Problem& problem, const Target& target, const RowEpilogue* epilogue,
                     const Parameters& given);

// The element type as the kernels' text spells it; throws UserError for one that has no product.
std::string_view device_type(DType dtype);

}  // namespace jf::grouped
