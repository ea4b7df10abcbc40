#include "host/planned.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

namespace jf::host {
namespace {

// A module's calls are all traced before the first is instantiated.
constexpr size_t kKept = 32;

struct Waiting {
  std::mutex mutex;
  std::deque<std::pair<std::string, Program>> programs;
};

Waiting& waiting() {
  static auto& waiting = *new Waiting;  // outlives every thread that still compiles at exit
  return waiting;
}

}  // namespace

void keep_planned(std::string key, Program program) {
  std::lock_guard lock(waiting().mutex);
  auto& programs = waiting().programs;
  std::erase_if(programs, [&](const auto& entry) { return entry.first == key; });
  if (programs.size() == kKept) programs.pop_front();
  programs.emplace_back(std::move(key), std::move(program));
}

std::optional<Program> take_planned(const std::string& key) {
  std::lock_guard lock(waiting().mutex);
  auto& programs = waiting().programs;
  const auto at = std::find_if(programs.begin(), programs.end(), [&](const auto& entry) { return entry.first == key; });
  if (at == programs.end()) return std::nullopt;
  std::optional<Program> program(std::move(at->second));
  programs.erase(at);
  return program;
}

}  // namespace jf::host
