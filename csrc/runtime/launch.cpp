#include "runtime/launch.h"

#include "base/error.h"

namespace jf::runtime {

void launch(std::string_view program, std::string_view entry, CuKernel kernel, Dim3 grid, Dim3 block, int shared_bytes,
            CuStream stream, void** arguments) {
  const int code = driver().launch_kernel.unchecked(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                    static_cast<unsigned>(shared_bytes), stream, arguments, nullptr);
  if (code == 0) return;
  throw_driver_error(
      cat("cuLaunchKernel of ", entry, " in ", program, " (grid ", grid.x, "x", grid.y, "x", grid.z, ", block ",
          block.x, "x", block.y, "x", block.z, ", ", shared_bytes, " bytes of shared memory)"),
      code);
}

void clear_word(void* word, CuStream stream) { driver().memset_words(reinterpret_cast<uint64_t>(word), 0, 1, stream); }

}  // namespace jf::runtime
