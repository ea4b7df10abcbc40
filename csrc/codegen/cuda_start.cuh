// Kernels of one program whose blocks start before the kernel before has ended, which hides the time that a launch
// takes. Needs sm_90.
#pragma once

#include "codegen/ptx_start.cuh"

namespace jf {

// The next kernel may start as soon as every block of this one has come here.
JF_FUNCTION void let_next_start() { ptx::launch_dependents(); }
// All that the kernels before have written is there afterwards. No memory is touched before.
JF_FUNCTION void await_previous() { ptx::wait_for_dependencies(); }
// What is read through the result is not read before the wait: what a kernel's own parameters point to counts as
// constant while it runs, and the compiler may read it first.
template <class T>
JF_FUNCTION T* after_previous(T* parameter) {
  return reinterpret_cast<T*>(ptx::renewed_global(parameter));
}

}  // namespace jf
