// Boxes of arrays that one instruction copies to shared memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "loops/kernel.h"

namespace jf::lower {

struct BulkAxis {
  int position;  // among the value's loop axes
  int64_t variable, extent;
};

// What a bulk copy says of itself.
struct TileRequest {
  std::string value;  // its name
  DType dtype;
  int buffer;                              // the parameter
  std::vector<int64_t> shape = {};         // its axes, slowest first
  std::vector<loops::IndexPtr> axes = {};  // the index of each of them
  loops::IndexPtr shared = nullptr;        // the element of shared memory
  std::vector<BulkAxis> bulk = {};         // what varies within the copy
};
struct Tile {
  loops::TensorMap map;
  std::vector<loops::IndexPtr> at;  // the first element, by axis of the map
  loops::IndexPtr to;               // in shared memory
};
// Throws UserError where the elements are no box, or do not lie in shared memory as the instruction writes it.
Tile find_tile(const TileRequest& request);

// Where shared memory with a swizzle must begin, in bytes.
constexpr int64_t kSwizzleAlignment = 1024;

}  // namespace jf::lower
