#include "runtime/compile.h"

#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "runtime/counters.h"
#include "runtime/disk_cache.h"
#include "runtime/host_compiler.h"
#include "runtime/log.h"
#include "runtime/nvrtc.h"

namespace jf::runtime {
namespace {

using Result = std::shared_ptr<const Binary>;

struct Table {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_future<Result>> slots;
};

Table& table() {
  static auto& table = *new Table;  // outlives every thread that still compiles at exit
  return table;
}

// The compiler of one call: what its binaries depend on, and how to run it.
struct Compiler {
  std::string version;
  std::vector<std::string> flags;
  std::function<std::string(const Source&)> run;
  int64_t Counters::* counter;
};

Compiler compiler_for(Language language, const Target& target) {
  std::string reason;
  if (language == Language::kHostCxx) {
    std::optional<HostCompiler> host = find_host_compiler(&reason);
    JF_REQUIRE(host, "[compile] ", reason);
    // Two compilers may print one version: a wrapper, for instance.
    std::string version = host->version;
    for (const std::string& word : host->command) version += " " + word;
    std::vector<std::string> flags = host_flags(target);
    auto run = [host = *host, flags](const Source& source) { return compile_host(source, flags, host); };
    return {std::move(version), std::move(flags), std::move(run), &Counters::compiled_host};
  }
  const std::optional<NvrtcInfo> nvrtc = find_nvrtc(&reason);
  JF_REQUIRE(nvrtc, "[compile] ", reason);
  std::vector<std::string> flags = cuda_flags(target);
  auto run = [flags](const Source& source) { return compile_cuda(source, flags); };
  return {cat("nvrtc ", nvrtc->major, ".", nvrtc->minor), std::move(flags), std::move(run), &Counters::compiled_cuda};
}

Result load_or_compile(const Source& source, const std::string& key, const Compiler& compiler) {
  auto binary = std::make_shared<Binary>();
  binary->language = source.language;
  binary->key = key;
  const DiskCache cache = DiskCache::open();
  if (auto entry = cache.load(key, source.language)) {
    count(&Counters::disk_hits);
    binary->bytes = std::move(entry->bytes);
    binary->path = std::move(entry->path);
    return binary;
  }
  const auto start = std::chrono::steady_clock::now();
  binary->bytes = compiler.run(source);
  count(compiler.counter);
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  log(LogLevel::kInfo, "compiled ", source.entries.empty() ? key : source.entries.front(), " in ", spent.count(),
      " ms");
  binary->path = cache.store(key, source, binary->bytes);
  return binary;
}

}  // namespace

std::shared_ptr<const Binary> compile(const Source& source, const Target& target) {
  JF_CHECK((source.language == Language::kCuda) == (target.platform == Platform::kCuda), "source is ",
           source_suffix(source.language), ", target is ", print(target));
  const Compiler compiler = compiler_for(source.language, target);
  const std::string name = key(source, compiler.flags, compiler.version, target);

  std::promise<Result> promise;
  std::shared_future<Result> earlier;
  {
    std::lock_guard lock(table().mutex);
    auto [at, is_first] = table().slots.try_emplace(name);
    if (is_first) {
      at->second = promise.get_future().share();
    } else {
      earlier = at->second;
    }
  }
  if (earlier.valid()) {
    Result result = earlier.get();
    count(&Counters::memory_hits);
    return result;
  }
  try {
    Result result = load_or_compile(source, name, compiler);
    promise.set_value(result);
    return result;
  } catch (...) {
    {
      std::lock_guard lock(table().mutex);
      table().slots.erase(name);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

}  // namespace jf::runtime
