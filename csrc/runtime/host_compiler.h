// The C++ compiler of the machine, found at run time. It turns a printed host source into a shared object.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/target.h"
#include "runtime/source.h"

namespace jf::runtime {

struct HostCompiler {
  std::vector<std::string> command;  // absolute path, then the arguments that make it a C++ compiler
  std::string version;               // first line of --version
};

// The first that runs of: $JAX_FUSER_CXX, then g++, c++, clang++ on PATH, then the ziglang package. A $JAX_FUSER_CXX
// that does not run is never replaced by another. When there is none, `reason` says so and what to do. Each compiler is
// started once per process for its version; later calls cost a walk over PATH.
std::optional<HostCompiler> find_host_compiler(std::string* reason = nullptr);

// Asks for the version in a thread of its own, once per process: a caller that will need it goes on meanwhile.
void find_host_compiler_ahead();

// Path of the executable inside the Python package ziglang, which only Python can find; empty for none.
void set_zig(std::string path);

// The flags that every host source of this target gets. The instruction set is the target's, never the compiler's
// guess.
std::vector<std::string> host_flags(const Target& target);

// The bytes of the shared object. It links libm and nothing of C++. Throws UserError with the compiler's words; the
// source is then kept on disk.
std::string compile_host(const Source& source, const std::vector<std::string>& flags, const HostCompiler& compiler);

}  // namespace jf::runtime
