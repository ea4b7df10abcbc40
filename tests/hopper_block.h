// The blocks of a cluster on a CPU, behind warpgroup.h: every CUDA thread a thread, shared memory, barriers, tensor
// copies and the products of 8-bit floats as sm_90a has them. Products and copies are done when they begin, but copies
// from shared memory as late as may be: when their thread waits for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

struct int4 {
  int x, y, z, w;
};
inline thread_local Dim blockIdx;
inline Dim gridDim;
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline void __syncwarp() {
  exchange(0, [](auto&, unsigned) { return 0; });
}
inline bool __any_sync(unsigned, bool value) { return __ballot_sync(~0u, value) != 0; }
inline unsigned atomicAdd(unsigned* to, unsigned value) { return std::atomic_ref(*to).fetch_add(value); }

namespace jf {

// [count, rows, bytes of a row]
struct TensorMap {
  unsigned char* data;
  int bytes, rows, element;
};

namespace ptx {

constexpr int kBlocks = JF_BLOCKS, kThreads = JF_WARPS / JF_BLOCKS * 32;
constexpr unsigned kOwn = 1 << 20;  // a block's part of the cluster's addresses
struct alignas(1024) Memory {
  unsigned char bytes[232448];
};
inline Memory memory[kBlocks];
inline unsigned char* at(unsigned address) {
  const unsigned block = address / kOwn;
  return memory[block == 0 ? blockIdx.x : block - 1].bytes + address % kOwn;
}
inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(p) - memory[blockIdx.x].bytes);
}
inline int cluster_rank() { return static_cast<int>(blockIdx.x); }
inline unsigned in_cluster(unsigned shared, int rank) { return shared + (rank + 1) * kOwn; }

inline std::barrier<> all(kBlocks* kThreads);
inline void cluster_meet() { all.arrive_and_wait(); }
#define __syncthreads ptx::cluster_meet  // where a cluster is a block
template <int kCount>
void meet(int number) {
  static std::deque<std::barrier<>> barriers = [] {
    std::deque<std::barrier<>> made;
    for (int i = 0; i < kBlocks * 16; ++i) made.emplace_back(kCount);
    return made;
  }();
  barriers[blockIdx.x * 16 + number].arrive_and_wait();
}

struct Barrier {
  int arrivals, awaited, bytes = 0;
  unsigned phase = 0;
  std::condition_variable changed;
  void advance() {
    if (awaited > 0 || bytes != 0) return;
    awaited = arrivals;
    ++phase;
  }
};
inline std::mutex lock;
inline std::map<const void*, Barrier> barriers;
template <class Change>
void change(unsigned address, Change change) {
  const std::lock_guard guard(lock);
  Barrier& barrier = barriers.at(at(address));
  const unsigned phase = barrier.phase;
  change(barrier);
  barrier.advance();
  if (barrier.phase != phase) barrier.changed.notify_all();
}
inline void mbarrier_init(unsigned address, unsigned arrivals) {
  const std::lock_guard guard(lock);
  Barrier& barrier = barriers[at(address)];
  barrier.arrivals = barrier.awaited = static_cast<int>(arrivals);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(unsigned address) {
  change(address, [](Barrier& b) { --b.awaited; });
}
inline void mbarrier_arrive_cluster(unsigned address) { mbarrier_arrive(address); }
inline void mbarrier_publish_cluster(unsigned address) { mbarrier_arrive(address); }
inline void mbarrier_arrive_expect(unsigned address, unsigned bytes) {
  change(address, [&](Barrier& b) { b.bytes += static_cast<int>(bytes), --b.awaited; });
}
inline void mbarrier_wait(unsigned address, unsigned parity) {
  std::unique_lock guard(lock);
  Barrier& barrier = barriers.at(at(address));
  barrier.changed.wait(guard, [&] { return (barrier.phase & 1) != parity; });
}
inline void mbarrier_wait_cluster(unsigned address, unsigned parity) { mbarrier_wait(address, parity); }

template <class T>
T load(unsigned address) {
  T value;
  std::memcpy(&value, at(address), sizeof(value));
  return value;
}
template <class T>
void store(unsigned address, const T& value) {
  std::memcpy(at(address), &value, sizeof(value));
}
inline unsigned ld_shared(unsigned address) { return load<unsigned>(address); }
inline int4 ld_shared4(unsigned address) { return load<int4>(address); }
inline void st_shared(unsigned address, const unsigned (&words)[4]) { store(address, words); }
inline void st_shared(unsigned address, float value) { store(address, value); }
inline void st_cluster(unsigned address, const int4& words) { store(address, words); }
inline void stmatrix_x4(unsigned address, const unsigned (&words)[4]) {
  const unsigned lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) store(__shfl_sync(~0u, address, i * 8 + lane / 4) + lane % 4 * 4, words[i]);
}
inline void stmatrix_x4_trans(unsigned, const unsigned (&)[4]) { std::abort(); }

// Boxes of 64 rows of 128 bytes, swizzled by 128.
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
template <class Use>
void for_box(const void* from, unsigned shared, int element, int row, int matrix, Use use) {
  const TensorMap& map = *static_cast<const TensorMap*>(from);
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 128; ++j) {
      const int byte = element * map.element + j;
      const bool inside = row + i < map.rows && byte < map.bytes;
      const long long place = (static_cast<long long>(matrix) * map.rows + row + i) * map.bytes + byte;
      use(at(swizzled(shared + i * 128 + j)), inside ? map.data + place : nullptr);
    }
  }
}
inline void tile_load(unsigned shared, const void* map, unsigned barrier, int element, int row, int matrix = 0) {
  for_box(map, shared, element, row, matrix, [](auto* to, auto* from) { *to = from ? *from : 0; });
  change(barrier, [](Barrier& b) { b.bytes -= 64 * 128; });
}
inline void tile_load_multicast(unsigned shared, const void* map, unsigned barrier, unsigned short blocks, int element,
                                int row) {
  for (int i = 0; i < kBlocks; ++i) {
    if (blocks >> i & 1) tile_load(in_cluster(shared, i), map, in_cluster(barrier, i), element, row);
  }
}
// Of this thread: those since the last commit, and groups of those before.
inline thread_local std::vector<std::function<void()>> begun;
inline thread_local std::deque<std::vector<std::function<void()>>> committed;
inline void tile_store(const void* map, unsigned shared, int element, int row) {
  begun.push_back([=] {
    for_box(map, shared, element, row, 0, [](auto* from, auto* to) {
      if (to) *to = *from;
    });
  });
}
inline void prefetch_map(const TensorMap&) {}
template <int kPending>
void bulk_wait_read() {
  for (; committed.size() > kPending; committed.pop_front()) {
    for (const auto& store : committed.front()) store();
  }
}
inline void bulk_commit() { committed.push_back(std::exchange(begun, {})); }
inline void fence_async_shared() {}
template <int>
void give_registers() {}
template <int>
void take_registers() {}

inline unsigned wgmma_operand(unsigned shared) { return shared / 16; }
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int>
void wgmma_wait() {}
template <int kSize>
void keep(float (&)[kSize]) {}

// Four or five bits of exponent.
inline float f8(unsigned char bits, bool e5m2) {
  const int fraction = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const int exponent = (bits & 0x7f) >> fraction, rest = bits & ((1 << fraction) - 1);
  if (e5m2 ? exponent == 31 : (bits & 0x7f) == 0x7f) return NAN;
  const float value = exponent == 0 ? std::ldexp(float(rest), 1 - bias - fraction)
                                    : std::ldexp(float((1 << fraction) + rest), exponent - bias - fraction);
  return bits & 0x80 ? -value : value;
}

}  // namespace ptx

namespace ptx {
// This thread's sums of 64 rows of `a` by kColumns rows of `b`, 32 contraction indices.
template <int kColumns>
struct Wgmma8 {
  template <bool kE5M2A, bool kE5M2B, int kSize>
  static void run(float (&sums)[kSize], unsigned a, unsigned b, int add) {
    static const std::vector<float> values = [] {
      std::vector<float> made;
      for (int i = 0; i < 512; ++i) made.push_back(f8(i % 256, i / 256));
      return made;
    }();
    const auto read = [](unsigned operand, int row, int i, bool e5m2) {
      return values[e5m2 * 256 + *at(swizzled(operand * 16 + row * 128 + i))];
    };
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      float sum = add ? sums[i] : 0;
      for (int j = 0; j < 32; ++j) sum += read(a, row, j, kE5M2A) * read(b, column, j, kE5M2B);
      sums[i] = sum;
    }
  }
};
}  // namespace ptx

// Of hopper_rows.cuh.
namespace grouped {
template <int kRows_, int kStages_, int kCluster_>
struct HopperTile {
  static constexpr int kRows = kRows_, kStages = kStages_, kCluster = kCluster_;
};
template <class In>
struct HopperProduct;
template <class Epilogue>
constexpr bool kZeroPadding = false;
}  // namespace grouped
}  // namespace jf

#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/hopper_units.cuh"
