// Loaded binaries. A module unloads itself with its last owner; equal binaries that are in use at once share one
// module.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "runtime/compile.h"
#include "runtime/driver.h"

namespace jf::runtime {

class HostModule {
 public:
  // Throws UserError when the system refuses to load the shared object.
  explicit HostModule(std::shared_ptr<const Binary> binary);
  ~HostModule();
  HostModule(const HostModule&) = delete;
  HostModule& operator=(const HostModule&) = delete;

  // The address of an entry, good for as long as the module lives. Throws InternalError for a name it does not have.
  void* symbol(const std::string& name) const;

 private:
  std::shared_ptr<const Binary> binary_;
  void* library_ = nullptr;
};

class CudaModule {
 public:
  // Throws UserError when the driver refuses the cubin.
  explicit CudaModule(std::shared_ptr<const Binary> binary);
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  // The kernel, ready to run on the device with up to that much dynamic shared memory. The handle is the same for all
  // devices; call once per device, outside a graph capture, because this is where the code travels to the device.
  CuKernel prepare(const std::string& entry, int shared_bytes, int device) const;

 private:
  std::shared_ptr<const Binary> binary_;
  CuLibrary library_ = nullptr;
  mutable std::mutex mutex_;  // the driver's attributes of a kernel are not safe to set from two threads
};

std::shared_ptr<const HostModule> load_host(std::shared_ptr<const Binary> binary);
std::shared_ptr<const CudaModule> load_cuda(std::shared_ptr<const Binary> binary);

}  // namespace jf::runtime
