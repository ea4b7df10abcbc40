// Arrays that hold nothing but what was loaded as bf16. Kept in pairs as they were read, two need one register.
#pragma once

#include <map>
#include <set>

#include "loops/kernel.h"

namespace jf::codegen {

std::set<int> packed_arrays(const loops::Kernel& kernel);
// Those that find the largest or smallest of it, or of its magnitudes, until threads join what they have: exact in
// pairs, and few instructions. And what was loaded, or comes from a packed array, as the registers that go into them;
// which of these are magnitudes of it.
struct PairedFolds {
  std::set<int> arrays = {};
  std::map<loops::RegisterId, loops::RegisterId> loaded = {};
  std::set<loops::RegisterId> magnitudes = {};
};
PairedFolds paired_folds(const loops::Kernel& kernel, const std::set<int>& packed);

}  // namespace jf::codegen
