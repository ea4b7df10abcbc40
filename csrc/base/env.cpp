#include "base/env.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace jf::env {
namespace {

thread_local Copy in_use;

std::string get(const char* name) {
  if (in_use) {
    const size_t size = std::strlen(name);
    for (const std::string& line : *in_use) {
      if (line.compare(0, size, name) == 0 && line.size() > size && line[size] == '=') return line.substr(size + 1);
    }
    return "";
  }
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

std::string dump_dir() { return get("JAX_FUSER_DUMP"); }
std::string cache_dir() { return get("JAX_FUSER_CACHE_DIR"); }
std::string log_level() { return get("JAX_FUSER_LOG"); }
std::string host_compiler() { return get("JAX_FUSER_CXX"); }
std::string home() { return get("HOME"); }
std::string xdg_cache_home() { return get("XDG_CACHE_HOME"); }
std::string path() { return get("PATH"); }
std::string temporary() { return get("TMPDIR"); }

Copy copy() {
  if (in_use) return in_use;
  auto lines = std::make_shared<std::vector<std::string>>();
  for (char** line = environ; line != nullptr && *line != nullptr; ++line) lines->emplace_back(*line);
  return lines;
}

Use::Use(Copy copy) : before_(std::exchange(in_use, std::move(copy))) {}
Use::~Use() { in_use = std::move(before_); }

}  // namespace jf::env
