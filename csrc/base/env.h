// The only place that reads the environment. Three switches, plus the compiler override that tools such as CMake also
// use.
#pragma once

#include <string>

namespace jf::env {

// JAX_FUSER_DUMP: folder that receives every stage of every compiled program; empty when unset.
std::string dump_dir();
// JAX_FUSER_CACHE_DIR: folder of the compile cache; empty when unset.
std::string cache_dir();
// JAX_FUSER_LOG: "info" or "debug"; empty when unset.
std::string log_level();
// JAX_FUSER_CXX: host C++ compiler to use before any other; empty when unset.
std::string host_compiler();
// HOME, XDG_CACHE_HOME and PATH, as the operating system gives them.
std::string home();
std::string xdg_cache_home();
std::string path();

}  // namespace jf::env
