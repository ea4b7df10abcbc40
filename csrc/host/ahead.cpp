#include "host/ahead.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/background.h"

namespace jf::host {
namespace {

// More than a module has calls, mostly: those that are not kept are compiled one after the other.
constexpr size_t kKept = 512;

struct Made {
  MakeExecutable make;  // until it is begun
  int64_t module = 0;
  runtime::Job job;
  std::shared_ptr<std::shared_ptr<Executable>> executable;  // null until begun; what it points to: until finished
};

struct Waiting {
  std::mutex mutex;
  std::deque<std::pair<std::string, Made>> made;
};

Waiting& waiting() {
  static auto& waiting = *new Waiting;  // outlives every thread that still compiles at exit
  return waiting;
}

void begin(Made& made) {
  made.executable = std::make_shared<std::shared_ptr<Executable>>();
  made.job = runtime::Job::begin(
      [executable = made.executable, make = std::exchange(made.make, nullptr)] { *executable = make(); });
}

std::optional<Made> take(const std::string& key) {
  std::lock_guard lock(waiting().mutex);
  auto& made = waiting().made;
  const auto at = std::find_if(made.begin(), made.end(), [&](const auto& entry) { return entry.first == key; });
  if (at == made.end()) return std::nullopt;
  std::optional<Made> taken(std::move(at->second));
  made.erase(at);
  if (taken->make) {
    for (auto& [other, later] : made) {
      if (later.make && later.module == taken->module) begin(later);
    }
  }
  return taken;
}

}  // namespace

void make_ahead(std::string key, MakeExecutable make, const Ahead& ahead) {
  Made made{std::move(make), ahead.module, {}, nullptr};
  if (ahead.at_once) begin(made);
  std::lock_guard lock(waiting().mutex);
  auto& all = waiting().made;
  std::erase_if(all, [&](const auto& entry) { return entry.first == key; });
  if (all.size() == kKept) all.pop_front();
  all.emplace_back(std::move(key), std::move(made));
}

std::shared_ptr<Executable> take_ahead(const std::string& key) {
  const std::optional<Made> made = take(key);
  if (!made) return nullptr;
  if (made->make) return made->make();
  made->job.finish();
  return *made->executable;
}

}  // namespace jf::host
