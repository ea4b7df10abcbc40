#include "host/counters.h"

#include <array>
#include <atomic>

#include "runtime/counters.h"

namespace jf::host {
namespace {

std::array<std::atomic<int64_t>, 3> events{};

int64_t read(Event event) { return events[static_cast<size_t>(event)].load(std::memory_order_relaxed); }

}  // namespace

void count(Event event) { events[static_cast<size_t>(event)].fetch_add(1, std::memory_order_relaxed); }

std::map<std::string, int64_t> counters() {
  const runtime::Counters c = runtime::counters();
  return {{"compiled_host", c.compiled_host},   {"compiled_cuda", c.compiled_cuda},
          {"disk_hits", c.disk_hits},           {"memory_hits", c.memory_hits},
          {"loaded_modules", c.loaded_modules}, {"instantiated", read(Event::kInstantiated)},
          {"built", read(Event::kBuilt)},       {"executed", read(Event::kExecuted)}};
}

}  // namespace jf::host
