#include "codegen/dialect.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "loops/bodies.h"
#include "runtime/output_pages.h"

namespace jf::codegen {
namespace {

// All types of a kernel have equally many lanes in a machine vector, so the widest type decides; preds are masks as
// wide as that. 16 bytes are the least that every machine has.
std::string cpu_settings(const std::vector<loops::Kernel>& kernels, const Target& target) {
  int64_t widest = 1, width = 1;
  bool masks = false;
  const auto widen = [&](DType dtype) {
    widest = std::max(widest, size_of(compute_dtype(dtype)));
    masks |= dtype == DType::kPred;
  };
  for (const loops::Kernel& kernel : kernels) {
    width = std::max<int64_t>(width, kernel.width);
    for (DType dtype : kernel.registers) widen(dtype);
    for (const loops::Array& array : kernel.arrays) widen(array.dtype);
  }
  const int64_t most = target.vector_bytes / widest, least = 16 / widest;
  return cat("#define JF_PART ", std::clamp(width, least, std::max(least, most)), "  // lanes of a machine vector\n",
             masks && widest < 4 ? cat("#define JF_PRED s", 8 * widest, "\n") : "");
}

// Whether tiles in registers make a large result: to ask for each vector whether it goes past the caches costs a
// transpose of bf16 a tenth of its time.
bool asks_often(const loops::Kernel& kernel) {
  bool unrolls = false, turns = false;
  for_each(kernel.body, [&](const auto& node) {
    if constexpr (requires { node.parallel; }) unrolls |= node.parallel == loops::Parallel::kUnroll;
    turns |= std::is_same_v<std::decay_t<decltype(node)>, loops::TurnedLoad>;
  });
  return unrolls && turns && std::any_of(kernel.buffers.begin(), kernel.buffers.end(), [](const loops::Buffer& buffer) {
           return buffer.written && buffer.bytes >= runtime::kBeyondCaches;
         });
}

std::string cpu_opening(const loops::Kernel& kernel, const std::string& entry,
                        const std::vector<Parameter>& parameters) {
  const std::string_view arguments = "(void* const* buffers, long task, bool past_caches)";
  std::string text = cat("extern \"C\" void ", entry, arguments);
  if (asks_often(kernel)) {
    const std::string known = cat(entry, "_known");
    text = cat("JF_FUNCTION void ", known, arguments, ";\n", text, " {\n  past_caches ? ", known,
               "(buffers, task, true) : ", known, "(buffers, task, false);\n}\nJF_FUNCTION void ", known, arguments);
  }
  text += " {\n";
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, type, is_compared] = parameters[i];
    text +=
        cat("  ", type, is_compared ? " " : " __restrict__ ", name, " = static_cast<", type, ">(buffers[", i, "]);\n");
  }
  return text;
}

std::string cuda_settings(const std::vector<loops::Kernel>&, const Target&) { return ""; }

std::string cuda_opening(const loops::Kernel& kernel, const std::string& entry,
                         const std::vector<Parameter>& parameters) {
  JF_CHECK(kernel.grid * kernel.cluster <= kMostBlocks && kernel.grid_y <= kMostBlocksAlongY, "kernel ", kernel.name,
           " has ", kernel.grid, " x ", kernel.grid_y, " blocks");
  std::string list;
  for (const auto& [name, type, is_compared] : parameters) {
    list += cat(list.empty() ? "" : ",\n    ", type, type.back() == '*' ? " __restrict__ " : " ", name);
  }
  const std::string cluster = kernel.cluster == 1 ? "" : cat("__cluster_dims__(", kernel.cluster, ", 1, 1) ");
  return cat("extern \"C\" __global__ void ", cluster, "__launch_bounds__(", kernel.block * kernel.block_y,
             kernel.at_once > 1 ? cat(", ", kernel.at_once) : "", ") ", entry, "(\n    ", list, ") {\n");
}

std::string cuda_shared(const loops::Kernel& kernel, const SharedMemory& memory,
                        const std::vector<std::string>& names) {
  std::string text;
  if (memory.dynamic) text += cat("  extern __shared__ __align__(", memory.alignment, ") char shared[];\n");
  if (memory.scratch > 0) {
    text += memory.dynamic ? "  char* const scratch = shared;\n"
                           : cat("  __shared__ __align__(128) char scratch[", memory.scratch, "];\n");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const loops::Buffer& buffer = kernel.buffers[i];
    if (buffer.shared_size == 0) continue;
    const std::string type = cat("jf::", name(buffer.dtype));
    text += memory.dynamic ? cat("  ", type, "* const ", names[i], " = reinterpret_cast<", type, "*>(shared + ",
                                 memory.offsets[i], ");\n")
                           : cat("  __shared__ __align__(", buffer.alignment, ") ", type, " ", names[i], "[",
                                 buffer.shared_size, "];\n");
  }
  return text;
}

constexpr Dialect kCpu = {
    .language = runtime::Language::kHostCxx,
    .prelude = "codegen/cpu_prelude.h",
    .math = "codegen/cpu_math.h",
    .fold = "codegen/cpu_fold.h",
    .fold_threads = "",
    .scan = "codegen/cpu_scan.h",
    .scan_threads = "",
    .search = "codegen/cpu_search.h",
    .unroll = "#pragma GCC unroll ",
    .task = "task",
    .block = "",
    .block_y = "",
    .thread = "",
    .thread_y = "",
    .turn = "",
    .cluster = "",
    .bulk = "",
    .map = "",
    .sync = "",
    .past_caches = true,
    .hints = false,
    .packs = false,
    .divides_by_same = true,
    .keeps_places = true,
    .has_scalars = false,
    .settings = cpu_settings,
    .opening = cpu_opening,
    .shared = nullptr,
};

constexpr Dialect kCuda = {
    .language = runtime::Language::kCuda,
    .prelude = "codegen/cuda_prelude.cuh",
    .math = "codegen/cuda_math.cuh",
    .fold = "codegen/cuda_fold.cuh",
    .fold_threads = "codegen/cuda_fold_threads.cuh",
    .scan = "codegen/cuda_scan.cuh",
    .scan_threads = "codegen/cuda_scan_threads.cuh",
    .search = "codegen/cuda_search.cuh",
    .unroll = "#pragma unroll ",
    .task = "",
    .block = "blockIdx.x",
    .block_y = "blockIdx.y",
    .thread = "threadIdx.x",
    .thread_y = "threadIdx.y",
    .turn = "codegen/cuda_turn.cuh",
    .cluster = "codegen/cuda_cluster.cuh",
    .bulk = "codegen/cuda_bulk.cuh",
    .map = "const __grid_constant__ jf::TensorMap",
    .sync = "__syncthreads();",
    .past_caches = false,
    .hints = true,
    .packs = true,
    .divides_by_same = false,
    .keeps_places = false,
    .has_scalars = true,
    .settings = cuda_settings,
    .opening = cuda_opening,
    .shared = cuda_shared,
};

}  // namespace

const Dialect& dialect(Platform platform) { return platform == Platform::kCpu ? kCpu : kCuda; }

}  // namespace jf::codegen
