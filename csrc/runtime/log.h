// What the package tells about its work: lines on standard error (JAX_FUSER_LOG), and a folder per compiled program
// (JAX_FUSER_DUMP). Both do nothing when their variable is unset, except for warnings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace jf::runtime {

enum class LogLevel : uint8_t { kInfo, kDebug };

// kInfo for JAX_FUSER_LOG=info and debug, kDebug for debug alone.
bool logs(LogLevel level);
// Writes the line at any level: for what the user must know, such as a request that cannot be met.
void warn(std::string_view line);

template <class... Args>
void log(LogLevel level, const Args&... args) {
  if (logs(level)) warn(cat(args...));
}

// Why JAX_FUSER_DUMP is no folder but a word such as 1, all or loops; empty where nothing is wrong.
std::string why_no_dump();

// The folder of one program inside JAX_FUSER_DUMP, numbered in the order of creation: 0007-softmax.
class Dump {
 public:
  explicit Dump(std::string_view program);
  bool enabled() const { return !folder_.empty(); }
  // `file` is a plain name such as "fusion.txt", "schedule.txt", "loops.txt", "kernel.cpp", "host.txt".
  void write(std::string_view file, std::string_view text) const;

 private:
  std::string folder_;
};

}  // namespace jf::runtime
