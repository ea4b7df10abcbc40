#include "runtime/counters.h"

#include <mutex>

namespace jf::runtime {
namespace {

std::mutex mutex;
Counters current;

}  // namespace

Counters counters() {
  std::lock_guard lock(mutex);
  return current;
}

void count(int64_t Counters::* counter) {
  std::lock_guard lock(mutex);
  ++(current.*counter);
}

}  // namespace jf::runtime
