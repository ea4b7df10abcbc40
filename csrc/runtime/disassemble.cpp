#include "runtime/disassemble.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "runtime/files.h"
#include "runtime/nvrtc.h"
#include "runtime/subprocess.h"

namespace jf::runtime {

std::string find_disassembler() {
  std::vector<std::string> folders;
  for (const std::string& folder : nvrtc_dirs()) folders.push_back(folder + "/../bin");
  const std::string path = env::path();
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    folders.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  folders.push_back("/usr/local/cuda/bin");
  for (const std::string& folder : folders) {
    const std::string file = folder + "/nvdisasm";
    if (!folder.empty() && folder[0] == '/' && access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

std::string disassemble(const std::string& cubin) {
  const std::string tool = find_disassembler();
  JF_REQUIRE(!tool.empty(),
             "[disassemble] no nvdisasm beside NVRTC, in PATH or in /usr/local/cuda; pip install nvidia-cuda-nvdisasm");
  const ScratchFolder folder;
  const std::string file = folder.path() + "/kernel.cubin";
  JF_REQUIRE(write_file(file, cubin), "[disassemble] cannot write ", file);
  const Finished finished = run({tool, "-c", file}, folder.path());
  JF_REQUIRE(finished.exit_code == 0, "[disassemble] ", tool, " failed: ", finished.output);
  return finished.output;
}

}  // namespace jf::runtime
