#include "runtime/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "base/error.h"

namespace jf::runtime {
namespace {

constexpr const char* kSoname = "libcuda.so.1";

std::atomic<bool> exiting{false};

struct Found {
  const Driver* driver = nullptr;
  std::string reason;
};

Found open_driver() {
  void* library = dlopen(kSoname, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return {nullptr, cat("no CUDA driver: ", dlerror(), "; install the NVIDIA driver, or run on the CPU")};
  }
  try {
    auto* driver = new Driver(library);
    driver->init(0);
    int devices = 0;
    driver->device_count(&devices);
    if (devices == 0) return {nullptr, "no CUDA device: the driver lists none; see CUDA_VISIBLE_DEVICES"};
    // Registered after the driver's own exit handlers, therefore run before them.
    std::atexit([] { exiting.store(true); });
    return {driver, ""};
  } catch (const UserError& error) {
    return {nullptr, cat("no usable CUDA driver: ", error.what(), "; see nvidia-smi")};
  }
}

// The driver's text for a code, through "cuGetErrorName" or "cuGetErrorString".
std::string describe(const char* question, int code) {
  void* library = dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD);
  void* symbol = library ? dlsym(library, question) : nullptr;
  const char* text = nullptr;
  if (symbol) reinterpret_cast<int (*)(int, const char**)>(symbol)(code, &text);
  return text ? text : cat("code ", code);
}

}  // namespace

void throw_driver_error(std::string_view call, int code) {
  throw UserError(cat("[cuda] ", call, " failed: ", describe("cuGetErrorName", code), " (",
                      describe("cuGetErrorString", code), ")"));
}

void* driver_symbol(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  JF_REQUIRE(symbol, "[cuda] the driver has no ", name, "; install a driver for CUDA 12.0 or newer");
  return symbol;
}

const Driver* find_driver(std::string* reason) {
  static const auto& found = *new Found(open_driver());
  if (!found.driver && reason) *reason = found.reason;
  return found.driver;
}

const Driver& driver() {
  std::string reason;
  if (const Driver* found = find_driver(&reason)) return *found;
  throw UserError("[cuda] " + reason);
}

bool driver_alive() { return !exiting.load(); }

std::optional<Target> cuda_target(int device) {
  const Driver* cuda = find_driver();
  int devices = 0;
  if (cuda) cuda->device_count(&devices);
  if (device < 0 || device >= devices) return std::nullopt;
  CuDevice handle = 0;
  cuda->device(&handle, device);
  // Numbers of enum CUdevice_attribute.
  auto attribute = [&](int which) {
    int value = 0;
    cuda->device_attribute(&value, which, handle);
    return value;
  };
  Target target;
  target.platform = Platform::kCuda;
  target.compute_capability = attribute(75) * 10 + attribute(76);
  target.multiprocessors = attribute(16);
  target.max_shared_bytes = attribute(97);
  target.max_threads_per_block = attribute(1);
  return target;
}

double memory_bandwidth(int device) {
  const Driver* cuda = find_driver();
  int devices = 0, kilohertz = 0, bits = 0;
  if (cuda) cuda->device_count(&devices);
  if (device < 0 || device >= devices) return 0;
  CuDevice handle = 0;
  cuda->device(&handle, device);
  // Numbers of enum CUdevice_attribute; memory moves data on both edges of its clock.
  if (cuda->device_attribute.unchecked(&kilohertz, 36, handle) != 0) return 0;
  if (cuda->device_attribute.unchecked(&bits, 37, handle) != 0) return 0;
  return 2.0 * kilohertz * 1e3 * bits / 8;
}

ContextScope::ContextScope(int device) {
  // Retained once per device and never released: streams and modules of ours may live as long as the process.
  static std::mutex mutex;
  static auto& contexts = *new std::map<int, CuContext>;
  CuContext context = nullptr;
  {
    std::lock_guard lock(mutex);
    auto at = contexts.find(device);
    if (at == contexts.end()) {
      CuDevice handle = 0;
      driver().device(&handle, device);
      driver().context_retain(&context, handle);
      contexts.emplace(device, context);
    } else {
      context = at->second;
    }
  }
  driver().context_push(context);
}

ContextScope::~ContextScope() {
  CuContext popped;
  driver().context_pop.unchecked(&popped);
}

}  // namespace jf::runtime
