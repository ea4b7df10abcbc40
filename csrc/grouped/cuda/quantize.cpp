#include "grouped/cuda/quantize.h"

#include "base/error.h"
#include "base/integers.h"
#include "grouped/cuda/hopper_kernel.h"

namespace jf::grouped {
namespace {

constexpr int kQuantizeThreads = 256;
constexpr int64_t kChunk = 32;  // rows of a copy

int64_t strips(const Quantization& q) { return q.of_columns ? 1 : kScaleBlock / hopper::columns_of_row(q.in); }

// As Quantizer::Shared.
int64_t shared_bytes(const Quantization& q, int64_t rows) {
  return strips(q) * rows * hopper::kRowBytes + 2 * 4 * (q.of_columns ? hopper::columns_of_row(q.in) : 1) + 8;
}

int64_t grid(const Quantization& q, const QuantizeConfig& c) {
  const int64_t along = q.of_columns ? c.blocks : divide_up(q.rows, int64_t{c.rows});
  return q.matrices * divide_up(q.columns, strips(q) * hopper::columns_of_row(q.in)) * along;
}

std::string text(const Quantization& q, const QuantizeConfig& c, std::string_view entry) {
  const std::string_view in = device_type(q.in);
  const auto truth = [](bool holds) { return holds ? "true" : "false"; };
  std::string s = "#include \"grouped/cuda/quantize.cuh\"\n\n";
  s += cat("// ", print(c), "\n");
  s += cat("using Kernel = jf::Quantizer<", in, ", ", truth(q.of_columns), ", ", truth(q.transpose), ">;\n");
  s += cat("static_assert(Kernel::kStrips * ", c.rows,
           " * Kernel::kRowBytes + sizeof(Kernel::Shared) == ", shared_bytes(q, c.rows),
           ", \"the launch gives the kernel its shared memory\");\n\n");
  s += "extern \"C\" __global__ ";
  if (c.blocks > 1) s += cat("__cluster_dims__(", c.blocks, ", 1, 1) ");
  s += cat("__launch_bounds__(", kQuantizeThreads, ", 2) void ", entry, "(\n    const ", in,
           "*, unsigned char* out, float* scales, const __grid_constant__ jf::TensorMap map,\n");
  s += "    long long rows, long long columns, long long pitch) {\n";
  s += cat("  extern __shared__ __align__(", hopper::kSharedAlign, ") char memory[];\n");
  s += cat("  Kernel::run(memory, map, {out, scales, rows, columns, pitch, ", c.rows, ", ", c.blocks, "});\n}\n");
  return s;
}

}  // namespace

int64_t Quantization::pitch() const { return transpose ? round_up(rows, int64_t{16}) : columns; }

std::string print(const QuantizeConfig& c) { return cat("quantize rows=", c.rows, " cluster=", c.blocks); }

QuantizeConfig choose_quantize(const Quantization& q, const Target& target) {
  if (!q.of_columns) return {kScaleBlock, 1};
  // As few blocks as hold the rows: 7168 x 4096 took 0.76 ms in 4 of 1792 rows, 0.81 in 8 of 896, of which two run on a
  // multiprocessor. Clusters of 6 and 7 leave many multiprocessors of the 16 or 18 that can be one idle.
  for (const int64_t blocks : {1, 2, 3, 4, 5, 8}) {
    const int64_t rows = round_up(divide_up(q.rows, blocks), kChunk);
    if (shared_bytes(q, rows) <= target.max_shared_bytes) return {static_cast<int>(rows), static_cast<int>(blocks)};
  }
  return {};
}

std::string why_not_quantize(const Quantization& q, const Target& target) {
  if (!has_wgmma(target)) {
    return cat("the kernel is for GPUs of compute capability 9.0, got ", print(target));
  }
  if (q.in != DType::kBF16 && q.in != DType::kF16 && q.in != DType::kF32) return cat("it takes no ", name(q.in));
  if (q.matrices == 0 || q.rows == 0 || q.columns == 0) return "an operand is empty";
  if (q.columns * size_of(q.in) % 16 != 0 || q.pitch() % 16 != 0) return "rows are no multiple of 16 bytes";
  for (const int64_t size : {q.matrices, q.rows, q.columns, grid(q, {kScaleBlock, kMostBlocksOfCluster})}) {
    if (size > hopper::kMostIndex) return cat("a size of ", size, ", it takes ", hopper::kMostIndex);
  }
  if (choose_quantize(q, target).rows == 0) return cat(q.rows, " rows, which a cluster does not hold");
  return "";
}

CudaKernel quantize_kernel(const Quantization& q, const Target& target) {
  const std::string why = why_not_quantize(q, target);
  JF_REQUIRE(why.empty(), "[quantize] ", why);
  const QuantizeConfig c = choose_quantize(q, target);
  CudaKernel kernel;
  kernel.entry = "jf_quantize";
  kernel.block = kQuantizeThreads;
  kernel.grid = grid(q, c);
  kernel.shared_bytes = static_cast<int>(shared_bytes(q, c.rows));
  kernel.maps = {{0, hopper::matrices(q.matrices, q.rows, q.columns, q.in, kChunk)}};
  kernel.instantiation = text(q, c, kernel.entry);
  return kernel;
}

}  // namespace jf::grouped
