// PTX of kernels that start before the kernel before them has ended. Needs sm_90.
#pragma once

namespace jf::ptx {

static __device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
static __device__ __forceinline__ void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The same address of global memory, of which the compiler knows nothing else.
static __device__ __forceinline__ void* renewed_global(const void* pointer) {
  unsigned long address = __cvta_generic_to_global(pointer);
  asm volatile("" : "+l"(address)::"memory");
  return __cvta_global_to_generic(address);
}

}  // namespace jf::ptx
