// How to write a large result: which stores are fast depends on whether the kernel has given its pages memory yet.
#pragma once

#include <cstdint>

namespace jf::runtime {

// Bytes from which a result is written with care.
constexpr int64_t kLargeOutput = int64_t{4} << 20;

// True when the result should be stored past the caches: it is large, its pages are resident and it begins with a
// cache line. A large result on fresh pages is marked for huge pages instead, where ordinary stores cost fewest page
// faults.
bool prepare_output(void* out, int64_t bytes);

}  // namespace jf::runtime
