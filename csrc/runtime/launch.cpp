#include "runtime/launch.h"

#include "base/error.h"

namespace jf::runtime {

// Of enum CUlaunchAttributeID.
constexpr int kProgrammaticStreamSerialization = 6;

void launch(std::string_view program, std::string_view entry, CuKernel kernel, Dim3 grid, Dim3 block, int shared_bytes,
            bool early, CuStream stream, void** arguments) {
  CuLaunchAttribute attribute{kProgrammaticStreamSerialization, {1}};
  const CuLaunchConfig config{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z},
                              static_cast<unsigned>(shared_bytes), stream, &attribute, early ? 1U : 0U};
  const int code = driver().launch_kernel.unchecked(&config, kernel, arguments, nullptr);
  if (code == 0) return;
  throw_driver_error(
      cat("cuLaunchKernelEx of ", entry, " in ", program, " (grid ", grid.x, "x", grid.y, "x", grid.z, ", block ",
          block.x, "x", block.y, "x", block.z, ", ", shared_bytes, " bytes of shared memory)"),
      code);
}

void clear_word(void* word, CuStream stream) { driver().memset_words(reinterpret_cast<uint64_t>(word), 0, 1, stream); }

}  // namespace jf::runtime
