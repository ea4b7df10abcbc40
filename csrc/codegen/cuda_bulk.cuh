// Bulk copies between global and shared memory. Needs sm_90.
//
// All threads call everything, equally often; the first thread of the block begins the copies. Loads fill rings of
// stages, which the threads read in turn; between the last read of a stage and the next copy to it they must meet.
#pragma once

#include "codegen/cuda_lanes.cuh"
#include "codegen/memory.h"
#include "codegen/ptx.cuh"

namespace jf {

JF_FUNCTION bool is_first_thread() { return threadIdx.x + threadIdx.y == 0; }

// An array and its boxes, as the driver describes them.
struct alignas(64) TensorMap {
  u64 words[16];
};

// What a bulk copy moves and begins at is a multiple of it.
constexpr u32 kBulkBytes = 16;

template <int kStages, long kStageSize>
struct Ring {
  u64* full;  // a barrier for each stage, whose phase ends when its copies have arrived
  int filling = 0;
  int stage = kStages - 1;  // the one that was waited for last
  u32 parity = 1;           // of the phase that was waited for last

  // The threads must meet before they go on.
  __device__ __forceinline__ explicit Ring(u64* barriers) : full(barriers) {
    if (!is_first_thread()) return;
#pragma unroll
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(barrier(i), 1);
    ptx::mbarrier_init_fence();
  }

  template <class M>
  __device__ __forceinline__ void load(M* buffer, long to, const M* from, long at, int elements) {
    if (!is_first_thread() || elements <= 0) return;
    const u32 bytes = elements * u32(sizeof(M));
    ptx::mbarrier_expect(barrier(filling), bytes);
    ptx::bulk_load(ptx::shared_address(buffer + filling * kStageSize + to), from + at, bytes, barrier(filling));
  }
  // The same where both places are equally far into 16 bytes: of these the copy moves all, so that up to 15 bytes
  // before and after what is asked for are read, too, never in other 16 bytes than it.
  template <class M>
  __device__ __forceinline__ void load_anywhere(M* buffer, long to, const M* from, long at, int elements) {
    if (!is_first_thread() || elements <= 0) return;
    const u64 begin = reinterpret_cast<u64>(from + at);
    const u32 before = begin % kBulkBytes, bytes = (before + elements * u32(sizeof(M)) + kBulkBytes - 1) & -kBulkBytes;
    ptx::mbarrier_expect(barrier(filling), bytes);
    ptx::bulk_load(ptx::shared_address(buffer + filling * kStageSize + to) - before,
                   reinterpret_cast<const void*>(begin - before), bytes, barrier(filling));
  }
  // A box of so many elements, from an element on; the fastest axis first.
  template <class M, class... At>
  __device__ __forceinline__ void load_tile(M* buffer, long to, const TensorMap& map, int elements, At... at) {
    if (!is_first_thread()) return;
    ptx::mbarrier_expect(barrier(filling), elements * u32(sizeof(M)));
    ptx::tile_load(ptx::shared_address(buffer + filling * kStageSize + to), &map, barrier(filling), int(at)...);
  }
  __device__ __forceinline__ void commit() {
    if (is_first_thread()) ptx::mbarrier_arrive(barrier(filling));
    filling = filling + 1 == kStages ? 0 : filling + 1;
  }
  __device__ __forceinline__ void await() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    parity ^= stage == 0;
    while (!ptx::mbarrier_try_wait(barrier(stage), parity)) {
    }
  }

 private:
  __device__ __forceinline__ u32 barrier(int number) const { return ptx::shared_address(full + number); }
};

// The threads must have passed fence_bulk and met since they wrote what is copied.
template <class M>
JF_FUNCTION void bulk_store(M* to, long at, const M* shared, long from, int elements) {
  if (!is_first_thread() || elements <= 0) return;
  ptx::bulk_store(to + at, ptx::shared_address(shared + from), elements * u32(sizeof(M)));
  ptx::bulk_commit();
}
JF_FUNCTION void fence_bulk() { ptx::fence_async_shared(); }
// Until all that was stored has been read. The threads must meet before they write there.
JF_FUNCTION void drain_bulk() {
  if (is_first_thread()) ptx::bulk_wait_read<0>();
}

}  // namespace jf
