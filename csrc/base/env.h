// The only place that reads the environment. Three switches, plus the compiler override that tools such as CMake also
// use.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace jf::env {

// JAX_FUSER_DUMP: folder that receives every stage of every compiled program; empty when unset.
std::string dump_dir();
// JAX_FUSER_CACHE_DIR: folder of the compile cache; empty when unset.
std::string cache_dir();
// JAX_FUSER_LOG: "info" or "debug"; empty when unset.
std::string log_level();
// JAX_FUSER_CXX: host C++ compiler to use before any other; empty when unset.
std::string host_compiler();
// HOME, XDG_CACHE_HOME, PATH and TMPDIR, as the operating system gives them.
std::string home();
std::string xdg_cache_home();
std::string path();
std::string temporary();

// All variables, NAME=value.
using Copy = std::shared_ptr<const std::vector<std::string>>;
Copy copy();

// While it lives, this thread finds what a copy holds: other threads may change the environment meanwhile, and reading
// it then is undefined.
class Use {
 public:
  explicit Use(Copy copy);
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  Copy before_;
};

}  // namespace jf::env
