#include "runtime/launch.h"

#include "base/error.h"

namespace jf::runtime {

void launch(std::string_view program, std::string_view entry, CuKernel kernel, Dim3 grid, Dim3 block, int shared_bytes,
            bool together, CuStream stream, void** arguments) {
  const auto shared = static_cast<unsigned>(shared_bytes);
  const int code = together ? driver().launch_together.unchecked(kernel, grid.x, grid.y, grid.z, block.x, block.y,
                                                                 block.z, shared, stream, arguments)
                            : driver().launch_kernel.unchecked(kernel, grid.x, grid.y, grid.z, block.x, block.y,
                                                               block.z, shared, stream, arguments, nullptr);
  if (code == 0) return;
  throw_driver_error(
      cat(together ? "cuLaunchCooperativeKernel of " : "cuLaunchKernel of ", entry, " in ", program, " (grid ", grid.x,
          "x", grid.y, "x", grid.z, ", block ", block.x, "x", block.y, "x", block.z, ", ", shared_bytes,
          " bytes of shared memory",
          together ? "; all blocks run at once: the process must have every multiprocessor of the device)" : ")"),
      code);
}

void fill_words(void* words, unsigned word, int64_t count, CuStream stream) {
  driver().memset_words(reinterpret_cast<uint64_t>(words), word, static_cast<size_t>(count), stream);
}

}  // namespace jf::runtime
