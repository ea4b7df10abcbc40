// What a program is compiled for: plain data, the only source of machine facts for planning, code generation and
// launch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace jf {

enum class Platform : uint8_t { kCpu, kCuda };

// Widest vector instructions that generated and ahead-of-time CPU kernels may use. Ordered: each includes those before
// it.
enum class Isa : uint8_t { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// Threads of a CUDA warp, on every device.
constexpr int64_t kWarp = 32;
// Blocks of a cluster, at the most, on every device that has clusters.
constexpr int64_t kMostBlocksOfCluster = 8;
// What bulk copies ask of addresses and sizes, in bytes.
constexpr int64_t kBulkBytes = 16;

struct Target {
  Platform platform = Platform::kCpu;
  // CPU
  Isa isa = Isa::kPortable;
  int vector_bytes = 16;  // 64 for AVX-512, 32 for AVX2, 16 otherwise
  // CUDA
  int compute_capability = 0;  // 90 for sm_90
  int multiprocessors = 0;     // streaming multiprocessors
  int max_shared_bytes = 0;    // opt-in dynamic shared memory of one block
  int max_threads_per_block = 1024;

  bool operator==(const Target&) const = default;
};

// "cpu isa=avx512 vector_bytes=64" / "cuda sm=90 multiprocessors=132 max_shared_bytes=232448
// max_threads_per_block=1024"
std::string print(const Target& target);
// parse_target(print(t)) == t; throws UserError for other text.
Target parse_target(std::string_view text);

std::string_view name(Isa isa);
// The widest Isa that this machine and its operating system allow, found by CPUID, never by model name.
Isa host_isa();
// The CPU target of this machine.
Target host_target();
// A CUDA target without a device at hand: 132 multiprocessors and the limits of that generation.
Target cuda_target_for(int compute_capability);
// The compiler's architecture name: "sm_90a" for compute capability 90, "sm_80" for 80.
std::string cuda_arch(const Target& target);

}  // namespace jf
