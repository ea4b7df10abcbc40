// How to write a large result: which stores are fast depends on whether the kernel has given its pages memory yet.
#pragma once

#include <cstdint>

namespace jf::runtime {

// Bytes from which a result's pages matter, and from which it would push out what the caches hold.
constexpr int64_t kLargeOutput = int64_t{4} << 20, kBeyondCaches = int64_t{16} << 20;

// True when the result should be stored past the caches: it is beyond them, its pages are resident and it begins with a
// cache line. A large result on fresh pages is marked for huge pages instead, where ordinary stores cost fewest page
// faults.
bool prepare_output(void* out, int64_t bytes);

}  // namespace jf::runtime
