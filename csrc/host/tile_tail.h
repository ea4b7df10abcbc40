// What follows a grouped product of rows on the CPU: a kernel that the product's tasks call for what they have just
// computed, so that the product is never a whole array in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/target.h"
#include "ir/fusion.h"
#include "loops/kernel.h"

namespace jf::host {

struct TileTail {
  loops::Kernel kernel;  // a pointwise one; a task of it is `chunk` columns of a row
  int product = 0;       // the number of the product among its buffers
  int64_t chunk = 0;
  int64_t n = 0;               // columns of the result
  std::vector<int64_t> first;  // the product's columns that an element of column 0 is made of
};

// Of a tail that is known to read the product in its own row, `first` columns on.
TileTail tile_tail(const ir::Fusion& tail, ir::ValueId product, std::vector<int64_t> first, const Target& target);

}  // namespace jf::host
