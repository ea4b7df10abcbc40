#include "runtime/module.h"

#include <dlfcn.h>

#include <unordered_map>

#include "base/error.h"
#include "runtime/counters.h"
#include "runtime/files.h"

namespace jf::runtime {
namespace {

// More dynamic shared memory than this must be asked for.
constexpr int kDefaultSharedBytes = 48 * 1024;
constexpr int kMaxDynamicSharedSize = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// The module of an equal binary that somebody still owns, or a new one.
template <class Module>
std::shared_ptr<const Module> load(std::shared_ptr<const Binary> binary) {
  static std::mutex mutex;
  static auto& modules = *new std::unordered_map<std::string, std::weak_ptr<const Module>>;
  std::lock_guard lock(mutex);
  const auto found = modules.find(binary->key);
  if (std::shared_ptr<const Module> module = found == modules.end() ? nullptr : found->second.lock()) return module;
  std::erase_if(modules, [](const auto& entry) { return entry.second.expired(); });
  const std::string key = binary->key;
  const auto module = std::make_shared<const Module>(std::move(binary));
  modules[key] = module;
  return module;
}

void* open_bytes(const std::string& bytes) {
  ScratchFolder folder;
  const std::string path = folder.path() + "/kernel.so";
  JF_REQUIRE(write_file(path, bytes), "[load] cannot write ", path,
             "; make room there, or point TMPDIR to another folder");
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays mapped when the folder goes
}

}  // namespace

HostModule::HostModule(std::shared_ptr<const Binary> binary) : binary_(std::move(binary)) {
  JF_CHECK(binary_->language == Language::kHostCxx, "host module of ", binary_suffix(binary_->language));
  // The cached file is preferred: debuggers and profilers can read it. It may be pruned by now, or on a disk that
  // forbids code to run.
  if (!binary_->path.empty()) library_ = dlopen(binary_->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) library_ = open_bytes(binary_->bytes);
  if (!library_) {
    const char* why = dlerror();
    throw UserError(cat("[load] cannot load a compiled kernel: ", why ? why : "unknown error",
                        "; JAX_FUSER_CXX may name a compiler for another system, or TMPDIR a disk mounted noexec"));
  }
  count(&Counters::loaded_modules);
}

HostModule::~HostModule() { dlclose(library_); }

void* HostModule::symbol(const std::string& name) const {
  void* address = dlsym(library_, name.c_str());
  JF_CHECK(address, "no function '", name, "' in binary ", binary_->key);
  return address;
}

CudaModule::CudaModule(std::shared_ptr<const Binary> binary) : binary_(std::move(binary)) {
  JF_CHECK(binary_->language == Language::kCuda, "CUDA module of ", binary_suffix(binary_->language));
  driver().library_load(&library_, binary_->bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  count(&Counters::loaded_modules);
}

CudaModule::~CudaModule() {
  if (driver_alive()) driver().library_unload.unchecked(library_);
}

CuKernel CudaModule::prepare(const std::string& entry, int shared_bytes, int device) const {
  CuKernel kernel = nullptr;
  driver().library_kernel(&kernel, library_, entry.c_str());
  ContextScope scope(device);
  std::lock_guard lock(mutex_);
  if (shared_bytes > kDefaultSharedBytes) {
    CuDevice handle = 0;
    driver().device(&handle, device);
    driver().kernel_set_attribute(kMaxDynamicSharedSize, shared_bytes, kernel, handle);
  }
  CuFunction loaded = nullptr;
  driver().kernel_function(&loaded, kernel);
  return kernel;
}

std::shared_ptr<const HostModule> load_host(std::shared_ptr<const Binary> binary) {
  return load<HostModule>(std::move(binary));
}

std::shared_ptr<const CudaModule> load_cuda(std::shared_ptr<const Binary> binary) {
  return load<CudaModule>(std::move(binary));
}

}  // namespace jf::runtime
