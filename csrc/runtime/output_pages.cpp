#include "runtime/output_pages.h"

#include <sys/mman.h>
#include <unistd.h>

namespace jf::runtime {

bool prepare_output(void* out, int64_t bytes) {
  constexpr uintptr_t kCacheLine = 64;
  constexpr int kSamples = 16;
  if (bytes < kLargeOutput) return false;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(out) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(out) + static_cast<uintptr_t>(bytes)) / page * page;
  const uintptr_t pages = (end - begin) / page;
  for (int i = 0; i < kSamples; ++i) {
    unsigned char resident = 0;
    void* sample = reinterpret_cast<void*>(begin + pages * i / kSamples * page);
    if (mincore(sample, page, &resident) != 0) return false;
    if (!(resident & 1)) {
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // advice: failure changes nothing
      return false;
    }
  }
  return reinterpret_cast<uintptr_t>(out) % kCacheLine == 0;
}

}  // namespace jf::runtime
