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
// Of shared memory, which the system keeps for each block.
constexpr int kReservedBytes = 1024;
// What bulk copies ask of addresses and sizes, in bytes.
constexpr int64_t kBulkBytes = 16;
// Of the widest load and store instructions of one CUDA thread.
constexpr int64_t kMaxVectorBytes = 16;
// The first compute capabilities with kernels at all, and with clusters.
constexpr int kFirstCapability = 80, kFirstWithClusters = 90;
// Streaming multiprocessors of the device for which programs are planned where none is at hand, or where the order of
// sums should not depend on it.
constexpr int kUsualMultiprocessors = 132;

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
// A CUDA target without a device at hand: kUsualMultiprocessors and the limits of that generation.
Target cuda_target_for(int compute_capability);
// Whether blocks can be clusters and copies can be in bulk.
bool has_clusters(const Target& target);
// Whether warpgroups can multiply (wgmma): compute capability 9.0 alone.
bool has_wgmma(const Target& target);
// A target with clusters for one without, and the other way round: their programs differ.
Target other_cuda_target(const Target& target);
// Clusters of so many blocks that run at once, one block on a multiprocessor. Their blocks are neighbours, and some
// neighbourhoods are too small for another cluster: of 132 multiprocessors clusters of 8 take 120, of 4 take 120 or
// 124, of 2 all.
int64_t clusters_at_once(int64_t blocks, int64_t multiprocessors);
// The compiler's architecture name: "sm_90a" for compute capability 90, "sm_80" for 80.
std::string cuda_arch(const Target& target);
// Whether a GPU runs what was compiled for another one.
bool runs_code_of(const Target& gpu, const Target& compiled);

}  // namespace jf
