// PTX instructions of the hand-written kernels, one function for each. Needs sm_80 or later.
//
// A shared-memory address is the 32-bit one that `shared_address` returns. Functions that take a whole warp say so; all
// its lanes must call them together.
#pragma once

#include "codegen/ptx_convert.cuh"

namespace jf::ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  unsigned long long address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
  return static_cast<unsigned>(address);
}

// ---- asynchronous copies from global to shared memory ----

// Copies kBytes (4, 8 or 16; both addresses aligned to it), or writes that many zeros and reads nothing when not
// `valid`.
template <int kBytes>
__device__ __forceinline__ void cp_async(unsigned shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async moves 4, 8 or 16 bytes");
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

// Closes the group of this thread's copies since the last call.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's newest groups are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- clusters of blocks (sm_90) ----

// All threads of the cluster meet: they arrive, then wait.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The same place in the shared memory of another block.
__device__ __forceinline__ unsigned in_cluster(unsigned shared, int rank) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}
// Its 4 bytes arrive at a barrier of that block.
__device__ __forceinline__ void store_in_cluster(unsigned there, unsigned value, unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there),
               "r"(value), "r"(barrier)
               : "memory");
}

// ---- bulk copies from global to shared memory (sm_90) ----
// An mbarrier is 8 bytes of shared memory. Its phases, of parity 0, 1, 0, .., each end when the awaited arrivals and
// bytes are there.

// One thread, before the others use it; a barrier of the block must follow.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the last mbarrier_init: copies see the barriers.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// The present phase awaits so many bytes more.
__device__ __forceinline__ void mbarrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Whether the phase of that parity has ended; waits a while for it.
__device__ __forceinline__ bool mbarrier_try_wait(unsigned barrier, unsigned parity) {
  unsigned ended;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(ended)
               : "r"(barrier), "r"(parity)
               : "memory");
  return ended != 0;
}
// One thread: begins to copy `bytes`, a multiple of 16 like both addresses; they arrive at the barrier.
__device__ __forceinline__ void bulk_load(unsigned shared, const void* global, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// One thread: begins to copy the box of a tensor map that begins at the element with these indices, the fastest first.
__device__ __forceinline__ void tile_load(unsigned shared, const void* map, unsigned barrier, int i0) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(
          shared),
      "l"(map), "r"(barrier), "r"(i0)
      : "memory");
}
__device__ __forceinline__ void tile_load(unsigned shared, const void* map, unsigned barrier, int i0, int i1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(shared),
      "l"(map), "r"(barrier), "r"(i0), "r"(i1)
      : "memory");
}
__device__ __forceinline__ void tile_load(unsigned shared, const void* map, unsigned barrier, int i0, int i1, int i2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(i0), "r"(i1), "r"(i2)
      : "memory");
}
__device__ __forceinline__ void tile_load(unsigned shared, const void* map, unsigned barrier, int i0, int i1, int i2,
                                          int i3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(i0), "r"(i1), "r"(i2), "r"(i3)
      : "memory");
}
__device__ __forceinline__ void tile_load(unsigned shared, const void* map, unsigned barrier, int i0, int i1, int i2,
                                          int i3, int i4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(i0), "r"(i1), "r"(i2), "r"(i3), "r"(i4)
      : "memory");
}
// One thread: begins to copy `bytes`, a multiple of 16 like both addresses.
__device__ __forceinline__ void bulk_store(void* global, unsigned shared, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
// Closes the group of this thread's bulk stores since the last call.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's newest groups have still to read shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// This thread's writes to shared memory come before bulk copies that begin after a barrier.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- shared memory ----

__device__ __forceinline__ unsigned ld_shared(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ void st_shared(unsigned address, const unsigned (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

// Warp: four 8x8 matrices of 16-bit elements. Lane 8 * i + r gives the address of row r (16 bytes) of matrix i. Word i
// of lane l holds elements 2 * (l % 4) and the next of row l / 4 of matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&words)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// Warp: the same with every matrix transposed after the load.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&words)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// ---- global memory ----

// 16 bytes in one access, which a compiler may split when it stores a struct; and 8.
__device__ __forceinline__ void st_global(void* address, const uint4& words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w)
               : "memory");
}
__device__ __forceinline__ void st_global(void* address, const uint2& words) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words.x), "r"(words.y) : "memory");
}

// ---- matrix products ----
// Warp: d[16, 8] += a[16, k] * b[k, 8] in f32. With g = lane / 4 and t = lane % 4, d holds (g, 2t), (g, 2t + 1),
// (g + 8, 2t), (g + 8, 2t + 1).

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace jf::ptx
