// The CUDA driver, opened at run time: no CUDA header, no link. Only this room's files call it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/target.h"

// The driver's own handle types, under its own tags, so that they are one type with any other declaration of them.
struct CUctx_st;
struct CUlib_st;
struct CUkern_st;
struct CUfunc_st;
struct CUstream_st;

namespace jf::runtime {

using CuDevice = int;
using CuContext = CUctx_st*;
using CuLibrary = CUlib_st*;
using CuKernel = CUkern_st*;
using CuFunction = CUfunc_st*;
using CuStream = CUstream_st*;

// Throws UserError: "[cuda] cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE (invalid argument)".
[[noreturn]] void throw_driver_error(std::string_view call, int code);
// The address of one driver function; throws UserError when the driver is too old to have it.
void* driver_symbol(void* library, const char* name);

// One function of the driver. Calling it checks the result, so no call can go unchecked by oversight.
template <class... Args>
class DriverCall {
 public:
  DriverCall(void* library, const char* name)
      : name_(name), function_(reinterpret_cast<int (*)(Args...)>(driver_symbol(library, name))) {}
  void operator()(Args... args) const {
    if (const int code = function_(args...); code != 0) throw_driver_error(name_, code);
  }
  // The bare result: for destructors, and for questions whose answer may be no.
  int unchecked(Args... args) const { return function_(args...); }

 private:
  const char* name_;
  int (*function_)(Args...);
};

// The driver's CUlaunchAttribute: blocks of a cluster.
struct CuLaunchAttribute {
  static constexpr int kClusterDimension = 4;
  int id;
  alignas(8) unsigned value[16];
};
// The driver's CUlaunchConfig.
struct CuLaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attributes;
  unsigned count;
};

struct Driver {
  explicit Driver(void* library) : library(library) {}

  void* library;
#define JF_DRIVER_CALL(field, name, ...) \
  DriverCall<__VA_ARGS__> field { library, name }
  JF_DRIVER_CALL(init, "cuInit", unsigned);
  JF_DRIVER_CALL(device_count, "cuDeviceGetCount", int*);
  JF_DRIVER_CALL(device, "cuDeviceGet", CuDevice*, int);
  JF_DRIVER_CALL(device_attribute, "cuDeviceGetAttribute", int*, int, CuDevice);
  JF_DRIVER_CALL(context_retain, "cuDevicePrimaryCtxRetain", CuContext*, CuDevice);
  JF_DRIVER_CALL(context_push, "cuCtxPushCurrent_v2", CuContext);
  JF_DRIVER_CALL(context_pop, "cuCtxPopCurrent_v2", CuContext*);
  JF_DRIVER_CALL(library_load, "cuLibraryLoadData", CuLibrary*, const void*, int*, void**, unsigned, int*, void**,
                 unsigned);
  JF_DRIVER_CALL(library_unload, "cuLibraryUnload", CuLibrary);
  JF_DRIVER_CALL(library_kernel, "cuLibraryGetKernel", CuKernel*, CuLibrary, const char*);
  JF_DRIVER_CALL(kernel_function, "cuKernelGetFunction", CuFunction*, CuKernel);
  JF_DRIVER_CALL(kernel_set_attribute, "cuKernelSetAttribute", int, int, CuKernel, CuDevice);
  // CuKernel stands where the driver's prototype has CUfunction; it takes both.
  JF_DRIVER_CALL(launch_kernel, "cuLaunchKernel", CuKernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                 unsigned, CuStream, void**, void**);
  JF_DRIVER_CALL(launch_with, "cuLaunchKernelEx", const CuLaunchConfig*, CuKernel, void**, void**);
  JF_DRIVER_CALL(launch_together, "cuLaunchCooperativeKernel", CuKernel, unsigned, unsigned, unsigned, unsigned,
                 unsigned, unsigned, unsigned, CuStream, void**);
  JF_DRIVER_CALL(memset_words, "cuMemsetD32Async", uint64_t, unsigned, size_t, CuStream);
  // Of the host alone: makes no call to the device.
  JF_DRIVER_CALL(tensor_map_encode_tiled, "cuTensorMapEncodeTiled", void*, int, unsigned, void*, const uint64_t*,
                 const uint64_t*, const uint32_t*, const uint32_t*, int, int, int, int);
#undef JF_DRIVER_CALL
};

// The initialised driver; null, with the reason and what to do, when there is none or it finds no device.
const Driver* find_driver(std::string* reason = nullptr);
// The same, or UserError.
const Driver& driver();
// False from the moment the process begins to exit: handles must then be left alone, the driver has freed them.
bool driver_alive();

// Nothing without a driver or without that device.
std::optional<Target> cuda_target(int device);
// Bytes per second that the device's memory moves at best; 0 where the driver does not say. For reports alone: nothing
// is planned by it.
double memory_bandwidth(int device);

// Makes the device's primary context, which JAX uses too, current for this thread and scope.
class ContextScope {
 public:
  explicit ContextScope(int device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
};

}  // namespace jf::runtime
