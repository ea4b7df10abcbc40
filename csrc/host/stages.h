// The sources of a program's steps, and every stage as text: for the executable, for people, tests and CI.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/target.h"
#include "host/program.h"
#include "runtime/launch.h"
#include "runtime/source.h"
#include "runtime/tensor_map.h"

namespace jf::host {

// Boxes of one of a step's buffers.
struct StepMap {
  int buffer;
  runtime::TensorLayout layout;
};
// How a step's kernel is started on CUDA. The buffers come first among its arguments, then `maps`, then `scalars`.
struct StepLaunch {
  std::string entry;
  runtime::Dim3 grid;
  runtime::Dim3 block;
  int cluster = 1;  // blocks of a cluster, where the text does not say so
  int shared_bytes = 0;
  std::optional<int> counter;  // the buffer whose first 32-bit word is made zero before
  std::optional<int> null;     // the buffer that the kernel gets a null pointer for
  std::optional<grouped::CudaOnes> ones;
  bool together = false;  // a cooperative launch
  std::vector<StepMap> maps;
  std::vector<int64_t> scalars;
};
struct StepSource {
  runtime::Source source;
  StepLaunch launch;
};
// The text for people. Nothing for a step that runs ahead-of-time compiled code: a grouped product on the CPU.
std::optional<StepSource> step_source(const Step& step, const Target& target);

// What is compiled and run: the same kernel, equal for all steps that are equal up to names.
struct CompiledStep {
  std::optional<StepSource> source;
  std::vector<BufferRef> buffers;  // in the order in which the kernel takes them
  std::vector<int> parameters;     // their numbers among a generated kernel's buffers
};
CompiledStep compiled_step(const Step& step, const Target& target);

// Keys: fusion, segments, schedule, loops, source, host.
std::map<std::string, std::string> stages(const std::string& program, const std::string& target);
// The instructions of every kernel, compiled by NVRTC; throws UserError without that, without a disassembler, or for a
// target that is not CUDA.
std::string sass(const std::string& program, const std::string& target);

struct CompiledSource {
  std::string entry;   // as the binary has it
  std::string source;  // for people
  std::string binary;  // cubin
};
// Needs NVRTC but no driver and no device.
std::vector<CompiledSource> compile_cuda(const std::string& program, const std::string& target);

}  // namespace jf::host
