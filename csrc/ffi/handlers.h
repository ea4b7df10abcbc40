// XLA's door: the FFI handlers of the one custom call `jax_fuser.program`.
//
// instantiate  parse, plan, compile (once per call site; equal texts share the work)
// initialize   CUDA: load modules (XLA calls it before every run, so it is a once-guard)
// execute      bind pointers and launch
#pragma once

#include <cstdint>

struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

namespace jf::ffi {

// The version of the program text's meaning. Part of the attributes, since a persistent compilation cache may hand us
// programs that an older jax_fuser wrote. Raise it when old texts must not run any more.
inline constexpr int64_t kAbi = 2;

using Handler = XLA_FFI_Error* (*)(XLA_FFI_CallFrame*);
struct Handlers {
  Handler instantiate;
  Handler initialize;  // nullptr on the CPU, which never calls it
  Handler execute;
};
Handlers cpu_handlers();
Handlers cuda_handlers();

}  // namespace jf::ffi
