// What differs between the languages that kernels are printed in. Everything else is the same text, because the
// preludes define the same names.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
#include "codegen/shared_memory.h"
#include "loops/kernel.h"
#include "runtime/source.h"

namespace jf::codegen {

// Blocks of a CUDA grid, along x and along y.
constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max(), kMostBlocksAlongY = 65535;

// A buffer as the kernel's text knows it.
struct Parameter {
  std::string name;
  std::string type;          // "const jf::f32*"
  bool is_compared = false;  // whether the kernel asks which others are the same array
};

struct Dialect {
  runtime::Language language;
  std::string_view prelude;  // the header every kernel includes
  std::string_view math;     // and the one with the ops that take only floats
  std::string_view fold;     // and those with folds over lanes and over threads
  std::string_view fold_threads;
  std::string_view scan;  // the same with scans, which includes those with folds
  std::string_view scan_threads;
  std::string_view search;  // and the one with searches in tables
  std::string_view unroll;  // the line before a loop to unroll, without the count
  // The number of the running task, block or thread; empty where the language has none.
  std::string_view task, block, block_y, thread, thread_y;
  std::string_view turn;     // the header with tiles of transposes; empty where the language has none
  std::string_view cluster;  // the header with folds over clusters of blocks; empty where the language has none
  std::string_view bulk;     // and the one with bulk copies
  std::string_view map;      // the type of a parameter that describes the boxes of an array
  std::string_view sync;     // waits for the threads of the block; empty where there are none
  // Whether a caller may ask for stores of large results past the caches: a parameter `past_caches` of kernels.
  bool past_caches;
  bool hints;            // whether loads say how long caches should keep what they read, and what is read first
  bool packs;            // whether registers may hold pairs of bf16
  bool divides_by_same;  // whether the prelude divides faster by what a loop does not change
  bool keeps_places;     // whether searches begin where the one before ended
  bool has_scalars;      // whether one lane takes less time than all
  // Definitions that the prelude asks for before it is included.
  std::string (*settings)(const std::vector<loops::Kernel>& kernels, const Target& target);
  // The lines up to the body: the signature with its opening brace, and what binds the buffers to their names.
  std::string (*opening)(const loops::Kernel& kernel, const std::string& entry,
                         const std::vector<Parameter>& parameters);
  // The next lines: shared buffers, named like all buffers, and `scratch`. Null where the language has none.
  std::string (*shared)(const loops::Kernel& kernel, const SharedMemory& memory, const std::vector<std::string>& names);
};

const Dialect& dialect(Platform platform);

}  // namespace jf::codegen
