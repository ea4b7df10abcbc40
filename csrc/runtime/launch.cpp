#include "runtime/launch.h"

namespace jf::runtime {

void launch(CuKernel kernel, Dim3 grid, Dim3 block, int shared_bytes, CuStream stream, void** arguments) {
  driver().launch_kernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, static_cast<unsigned>(shared_bytes),
                         stream, arguments, nullptr);
}

void clear_word(void* word, CuStream stream) { driver().memset_words(reinterpret_cast<uint64_t>(word), 0, 1, stream); }

}  // namespace jf::runtime
