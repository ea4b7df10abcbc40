// NVRTC, NVIDIA's run-time compiler, found at run time: no CUDA header, no link, no driver needed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/target.h"
#include "runtime/source.h"

namespace jf::runtime {

// A folder that may hold libnvrtc.so, such as that of the PyPI package. Folders are tried in the order they were added,
// after a library that the process has loaded already (JAX's CUDA plugin does) and before the system's.
void add_nvrtc_dir(std::string folder);
std::vector<std::string> nvrtc_dirs();

struct NvrtcInfo {
  int major = 0;
  int minor = 0;
  std::string path;  // of the loaded library
};
// Loads NVRTC on the first call. When there is none, `reason` says so and what to do, and a later call looks again.
std::optional<NvrtcInfo> find_nvrtc(std::string* reason = nullptr);

// The flags that every CUDA source of this target gets.
std::vector<std::string> cuda_flags(const Target& target);

// The bytes of the cubin. Any thread; compiles run in parallel. Throws UserError with NVRTC's log.
std::string compile_cuda(const Source& source, const std::vector<std::string>& flags);

}  // namespace jf::runtime
