// A compiled host program: the state of one custom call. Compiled at instantiate, loaded at initialize (CUDA), const
// after.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
#include "host/ahead.h"
#include "host/program.h"
#include "host/stages.h"
#include "runtime/launch.h"
#include "runtime/module.h"
#include "runtime/parallel_for.h"

namespace jf::host {

// The buffers of one call, as XLA gives them.
struct CallBuffers {
  std::span<void* const> inputs;
  std::span<void* const> outputs;
  void* workspace = nullptr;  // the extra result, nullptr when the program needs none
};

// Of a generated kernel for the CPU (codegen/generate.h).
using HostEntry = void (*)(void* const* buffers, long task, bool past_caches);

class Executable {
 public:
  // Compiles every kernel that no earlier program of this process compiled.
  Executable(Program program, const Target& target);

  const Program& program() const { return program_; }

  // Runs on the calling thread and the pool's; returns when the results are written.
  void run_cpu(const CallBuffers& buffers, const runtime::Pool& pool) const;

  // Loads the kernels onto a device, once per device; later calls only look.
  void load(int device);
  // Launches on `stream`; decides nothing, so that the launches can be captured and replayed.
  void run_cuda(const CallBuffers& buffers, runtime::CuStream stream) const;

 private:
  struct LargeResult {
    size_t buffer;
    int64_t bytes;
  };
  struct LoadedStep {
    std::vector<BufferRef> buffers;                 // in the order in which the kernel takes them
    std::shared_ptr<const runtime::Binary> binary;  // nullptr for ahead-of-time compiled code
    std::shared_ptr<const runtime::HostModule> host;
    HostEntry host_entry = nullptr;
    std::vector<int> parameters;     // of host_entry, by their numbers among the kernel's buffers
    std::vector<LargeResult> large;  // of a kernel on the CPU
    std::shared_ptr<const runtime::CudaModule> cuda;
    runtime::CuKernel kernel = nullptr;  // one handle serves every device
    StepLaunch launch;
  };
  static constexpr int kMaxDevices = 64;

  Program program_;
  Target target_;
  std::vector<LoadedStep> steps_;
  std::mutex load_mutex_;
  std::array<std::atomic<bool>, kMaxDevices> loaded_{};
};

// Bytes of the extra uint8 result that holds values between segments; `portable`: enough for any target, not only for
// this one where this process has it. What is planned to say so is kept for instantiate to take, and compiled in the
// background as `ahead` says. `shown`: the program with the user's names, which a dump then has.
int64_t workspace_bytes(const std::string& program, const std::string& target, bool portable, const Ahead& ahead,
                        const std::string& shown = {});

// The executable of a program text for a target, shared by equal texts of this process.
std::shared_ptr<Executable> instantiate(std::string_view program, std::string_view target);

}  // namespace jf::host
