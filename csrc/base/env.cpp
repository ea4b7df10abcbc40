#include "base/env.h"

#include <cstdlib>

namespace jf::env {
namespace {

std::string get(const char* name) {
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

}  // namespace jf::env
