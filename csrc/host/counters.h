// What was compiled, loaded and run in this process, by name: the runtime's counters and this room's.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace jf::host {

enum class Event : uint8_t { kInstantiated, kBuilt, kExecuted };
void count(Event event);

// instantiated: call sites that XLA compiled or loaded. built: distinct programs compiled for them. executed: times a
// handler ran; replays of a captured graph do not count.
std::map<std::string, int64_t> counters();

}  // namespace jf::host
