// The instructions of a cubin as text, where NVIDIA's disassembler is installed: for people, never for running.
#pragma once

#include <string>

namespace jf::runtime {

// The text of nvdisasm; throws UserError where it is missing, with what to install. It is looked for beside NVRTC
// (add_nvrtc_dir), along PATH and in /usr/local/cuda.
std::string disassemble(const std::string& cubin);
// The path of nvdisasm, empty where there is none.
std::string find_disassembler();

}  // namespace jf::runtime
