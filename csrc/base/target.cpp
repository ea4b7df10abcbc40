#include "base/target.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace jf {
namespace {

constexpr int kLeastVectorBytes = 16;
constexpr std::array<std::string_view, 5> kIsaNames = {"portable", "avx2", "avx512", "avx512bf16", "amx"};

// Asks Linux for the AMX tile registers; without the permission the first tile instruction faults.
bool request_amx() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

int vector_bytes(Isa isa) {
  if (isa >= Isa::kAvx512) return 64;
  return isa == Isa::kAvx2 ? 32 : 16;
}

int parse_int(std::string_view key, std::string_view text) {
  int value = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  JF_REQUIRE(code == std::errc() && end == text.data() + text.size(), "[parse_target] ", key,
             " needs an integer, got '", text, "'");
  return value;
}

Isa parse_isa(std::string_view text) {
  for (size_t i = 0; i < kIsaNames.size(); ++i) {
    if (kIsaNames[i] == text) return static_cast<Isa>(i);
  }
  throw UserError(cat("[parse_target] unknown isa '", text, "'; expected portable, avx2, avx512, avx512bf16 or amx"));
}

}  // namespace

std::string_view name(Isa isa) { return kIsaNames[static_cast<size_t>(isa)]; }

Isa host_isa() {
  static const Isa isa = [] {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kPortable;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c & (1u << 29))) return Isa::kPortable;  // F16C
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
      return Isa::kAvx2;
    }
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 5))) return Isa::kAvx512;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (1u << 22)) || !(d & (1u << 24)) || !request_amx()) {
      return Isa::kAvx512Bf16;
    }
    return Isa::kAmx;
#else
    return Isa::kPortable;
#endif
  }();
  return isa;
}

Target host_target() {
  Target target;
  target.isa = host_isa();
  target.vector_bytes = vector_bytes(target.isa);
  return target;
}

std::string print(const Target& t) {
  if (t.platform == Platform::kCpu) return cat("cpu isa=", name(t.isa), " vector_bytes=", t.vector_bytes);
  return cat("cuda sm=", t.compute_capability, " multiprocessors=", t.multiprocessors,
             " max_shared_bytes=", t.max_shared_bytes, " max_threads_per_block=", t.max_threads_per_block);
}

Target parse_target(std::string_view text) {
  auto next = [&text] {
    const size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::string_view();
    const size_t end = std::min(text.find(' ', begin), text.size());
    std::string_view word = text.substr(begin, end - begin);
    text.remove_prefix(end);
    return word;
  };
  Target target;
  const std::string_view platform = next();
  JF_REQUIRE(platform == "cpu" || platform == "cuda", "[parse_target] expected 'cpu' or 'cuda', got '", platform, "'");
  target.platform = platform == "cpu" ? Platform::kCpu : Platform::kCuda;
  for (std::string_view word = next(); !word.empty(); word = next()) {
    const size_t equal = word.find('=');
    JF_REQUIRE(equal != std::string_view::npos, "[parse_target] expected key=value, got '", word, "'");
    const std::string_view key = word.substr(0, equal), value = word.substr(equal + 1);
    if (key == "isa") {
      target.isa = parse_isa(value);
    } else if (key == "vector_bytes") {
      target.vector_bytes = parse_int(key, value);
    } else if (key == "sm") {
      target.compute_capability = parse_int(key, value);
    } else if (key == "multiprocessors") {
      target.multiprocessors = parse_int(key, value);
    } else if (key == "max_shared_bytes") {
      target.max_shared_bytes = parse_int(key, value);
    } else if (key == "max_threads_per_block") {
      target.max_threads_per_block = parse_int(key, value);
    } else {
      throw UserError(cat("[parse_target] unknown key '", key, "'"));
    }
  }
  // Planning divides by these.
  const bool is_sound = target.platform == Platform::kCpu
                            ? target.vector_bytes >= kLeastVectorBytes
                            : target.compute_capability > 0 && target.multiprocessors > 0 &&
                                  target.max_shared_bytes >= 0 && target.max_threads_per_block >= kWarp;
  JF_REQUIRE(is_sound, "[parse_target] no such machine: ", print(target));
  return target;
}

Target cuda_target_for(int compute_capability) {
  JF_REQUIRE(compute_capability >= kFirstCapability,
             "[target] CUDA devices below compute capability 8.0 are not supported, got ", compute_capability);
  constexpr int kKib = 1024;
  // Opt-in shared memory of one block: 227 KiB on 9.x to 11.x, 163 KiB on 8.0 and 8.7, 99 KiB on 8.6, 8.9 and 12.x.
  const bool large = compute_capability >= 90 && compute_capability < 120;
  const int shared = large ? 227 : compute_capability == 80 || compute_capability == 87 ? 163 : 99;
  Target target;
  target.platform = Platform::kCuda;
  target.compute_capability = compute_capability;
  target.multiprocessors = kUsualMultiprocessors;
  target.max_shared_bytes = shared * kKib;
  return target;
}

bool has_clusters(const Target& target) {
  return target.platform == Platform::kCuda && target.compute_capability >= kFirstWithClusters;
}
bool has_wgmma(const Target& target) { return target.platform == Platform::kCuda && target.compute_capability == 90; }

Target other_cuda_target(const Target& target) {
  return cuda_target_for(has_clusters(target) ? kFirstCapability : kFirstWithClusters);
}

int64_t clusters_at_once(int64_t blocks, int64_t multiprocessors) {
  const int64_t used = blocks > 2 ? multiprocessors * 10 / 11 : multiprocessors;
  return std::max<int64_t>(1, used / blocks);
}

std::string cuda_arch(const Target& target) {
  // The 'a' variant carries wgmma and setmaxnreg, which plain sm_90 refuses.
  return cat("sm_", target.compute_capability, has_wgmma(target) ? "a" : "");
}

bool runs_code_of(const Target& gpu, const Target& compiled) {
  const int own = gpu.compute_capability, other = compiled.compute_capability;
  // Of one major version newer ones run what older ones do, but for the 'a' variant.
  return own == other || (own / 10 == other / 10 && own > other && !has_wgmma(compiled));
}

}  // namespace jf
