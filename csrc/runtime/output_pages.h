// How to write a large result: which stores are fast depends on whether the kernel has given its pages memory yet.
#pragma once

#include <cstdint>

namespace jf::runtime {

// True when the result should be stored past the caches: it is large and its pages are resident. A large result on
// fresh pages is marked for huge pages instead, where ordinary stores cost fewest page faults.
bool prepare_output(void* out, int64_t bytes);

}  // namespace jf::runtime
