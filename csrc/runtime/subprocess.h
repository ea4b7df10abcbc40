// Runs a program and waits for it. Started by posix_spawn, never by fork: JAX is multithreaded.
#pragma once

#include <string>
#include <vector>

namespace jf::runtime {

struct Finished {
  int exit_code = 0;   // 128 + signal number for a killed program
  std::string output;  // standard output and error together
};

// Runs `command` (an absolute path, then arguments) in `folder`, where its output is collected in log.txt.
Finished run(const std::vector<std::string>& command, const std::string& folder);

}  // namespace jf::runtime
