#include "runtime/launch.h"

#include "base/error.h"

namespace jf::runtime {
namespace {

// Where the launch says how many blocks a cluster has.
int launch_clusters(CuKernel kernel, Dim3 grid, Dim3 block, int cluster, unsigned shared, CuStream stream,
                    void** arguments) {
  CuLaunchAttribute attribute = {CuLaunchAttribute::kClusterDimension, {static_cast<unsigned>(cluster), 1, 1}};
  const CuLaunchConfig config = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, stream, &attribute, 1};
  return driver().launch_with.unchecked(&config, kernel, arguments, nullptr);
}

}  // namespace

void launch(std::string_view program, std::string_view entry, CuKernel kernel, Dim3 grid, Dim3 block, int cluster,
            int shared_bytes, bool together, CuStream stream, void** arguments) {
  JF_CHECK(cluster == 1 || !together, entry, ": a cooperative launch of clusters");
  const auto shared = static_cast<unsigned>(shared_bytes);
  const auto start = [&] {
    if (cluster > 1) return launch_clusters(kernel, grid, block, cluster, shared, stream, arguments);
    if (together) {
      return driver().launch_together.unchecked(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
                                                stream, arguments);
    }
    return driver().launch_kernel.unchecked(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream,
                                            arguments, nullptr);
  };
  const int code = start();
  if (code == 0) return;
  throw_driver_error(
      cat(cluster > 1 ? "cuLaunchKernelEx of "
          : together  ? "cuLaunchCooperativeKernel of "
                      : "cuLaunchKernel of ",
          entry, " in ", program, " (grid ", grid.x, "x", grid.y, "x", grid.z,
          cluster > 1 ? cat(", clusters of ", cluster) : "", ", block ", block.x, "x", block.y, "x", block.z, ", ",
          shared_bytes, " bytes of shared memory",
          together ? "; all blocks run at once: the process must have every multiprocessor of the device)" : ")"),
      code);
}

void fill_words(void* words, unsigned word, int64_t count, CuStream stream) {
  driver().memset_words(reinterpret_cast<uint64_t>(words), word, static_cast<size_t>(count), stream);
}

}  // namespace jf::runtime
