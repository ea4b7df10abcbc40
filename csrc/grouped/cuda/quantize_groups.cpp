#include "grouped/cuda/quantize_groups.h"

#include "base/error.h"
#include "base/integers.h"
#include "grouped/cuda/hopper_kernel.h"

namespace jf::grouped {
namespace {

// As GroupQuantizer.
constexpr int kGroupThreads = 256;
constexpr int64_t kPlaces = 128, kGroupColumns = 64, kOwn = 8;

int64_t grid(const GroupQuantization& q) { return q.places / kPlaces * divide_up(q.columns, kGroupColumns); }

std::string text(const GroupQuantization& q, std::string_view entry) {
  const std::string_view in = device_type(q.in);
  const int blocks = size_of(q.in) == 2 ? 6 : 5;  // of a multiprocessor, as many as registers allow
  std::string s = "#include \"grouped/cuda/quantize_groups.cuh\"\n\n";
  s += cat("// ", print(q), "\nusing Kernel = jf::GroupQuantizer<", in, ">;\n");
  s += cat("static_assert(Kernel::kThreads == ", kGroupThreads, " && Kernel::kPlaces == ", kPlaces,
           " && Kernel::kColumns == ", kGroupColumns, ", \"the grid covers the result\");\n\n");
  s += cat("extern \"C\" __global__ __launch_bounds__(", kGroupThreads, ", ", blocks, ") void ", entry, "(\n    const ",
           in, "* x, const int* row, const int* group, const float* inverses, unsigned char* out, long long rows,\n");
  s += "    long long columns, long long places) {\n";
  s += "  __shared__ __align__(16) char memory[Kernel::kBytes];\n";
  s += "  Kernel::run(memory, {x, row, group, inverses, out, int(rows), int(columns), places});\n}\n";
  return s;
}

}  // namespace

std::string print(const GroupQuantization&) { return cat("quantize groups tile=", kPlaces, "x", kGroupColumns); }

std::string why_not_quantize(const GroupQuantization& q, const Target& target) {
  if (!has_wgmma(target)) {
    return cat("the kernel is for GPUs of compute capability 9.0, got ", print(target));
  }
  if (q.in != DType::kBF16 && q.in != DType::kF16 && q.in != DType::kF32) return cat("it takes no ", name(q.in));
  if (q.rows == 0 || q.columns == 0 || q.groups == 0 || q.places == 0) return "an operand is empty";
  if (q.columns % kOwn != 0) return cat(q.columns, " columns, which are no multiple of ", kOwn);
  if (q.places % kPlaces != 0) return cat(q.places, " places, which are no multiple of ", kPlaces);
  for (const int64_t size : {q.rows, q.columns, q.groups, q.places, grid(q)}) {
    if (size > hopper::kMostIndex) return cat("a size of ", size, ", it takes ", hopper::kMostIndex);
  }
  return "";
}

CudaKernel quantize_kernel(const GroupQuantization& q, const Target& target) {
  const std::string why = why_not_quantize(q, target);
  JF_REQUIRE(why.empty(), "[quantize_groups] ", why);
  CudaKernel kernel;
  kernel.entry = "jf_quantize_groups";
  kernel.block = kGroupThreads;
  kernel.grid = grid(q);
  kernel.instantiation = text(q, kernel.entry);
  return kernel;
}

}  // namespace jf::grouped
