// Clusters of blocks on a CPU, behind warpgroup.h: CUDA threads, shared memory, barriers, tensor copies and products as
// sm_90a has them. Products and copies are done when they begin, but copies from shared memory as late as may be: when
// their thread waits for them.
#pragma once

#include <array>
#include <map>
#include <utility>

struct float4 {
  float x, y, z, w;
};
struct int4 {
  int x, y, z, w;
};
#define blockIdx (current->block)
inline Dim gridDim;
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline void __syncwarp() { meeting[current->first_warp + threadIdx.x / 32].arrive_and_wait(); }
inline bool __any_sync(unsigned, bool value) { return __ballot_sync(~0u, value) != 0; }
inline unsigned atomicAdd(unsigned* to, unsigned value) { return std::exchange(*to, *to + value); }
inline void atomicMin(int* to, int value) { *to = std::min(*to, value); }

namespace jf {

// [count, rows, bytes of a row], boxes of so many rows of so many bytes.
struct TensorMap {
  unsigned char* data;
  int bytes, rows, element, box = 64, wide = 128;
  bool swizzles = true;  // by 128
};

namespace ptx {

constexpr int kBlocks = JF_BLOCKS, kThreads = JF_WARPS / JF_BLOCKS * 32;  // most blocks of a launch; of each
constexpr unsigned kOwn = 1 << 20;                                        // a block's part of addresses of a cluster
inline int cluster = 1;                                                   // blocks of one
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
inline int cluster_rank() { return static_cast<int>(blockIdx.x) % cluster; }
inline unsigned cluster_blocks() { return cluster; }
inline unsigned in_cluster(unsigned shared, int rank) {
  return shared + (blockIdx.x - cluster_rank() + rank + 1) * kOwn;
}

inline std::deque<::Barrier> all;  // of each cluster
inline void cluster_meet() { all[blockIdx.x / cluster].arrive_and_wait(); }
#define __syncthreads ptx::cluster_meet  // where a cluster is a block
template <int kCount>
void meet(int number) {
  static std::deque<::Barrier> barriers = [] {
    std::deque<::Barrier> made;
    for (int i = 0; i < kBlocks * 16; ++i) made.emplace_back(kCount);
    return made;
  }();
  barriers[blockIdx.x * 16 + number].arrive_and_wait();
}

struct MBarrier {
  int arrivals, awaited, bytes = 0, phase = 0;
  void advance() {
    if (awaited > 0 || bytes != 0) return;
    awaited = arrivals;
    ++phase;
  }
};
inline std::map<const void*, MBarrier> barriers;
template <class Change>
void change(unsigned address, Change change) {
  MBarrier& barrier = barriers.at(at(address));
  change(barrier);
  barrier.advance();
}
inline void mbarrier_init(unsigned address, unsigned arrivals) {
  const int count = static_cast<int>(arrivals);
  barriers.insert_or_assign(at(address), MBarrier{count, count});
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(unsigned address) {
  change(address, [](MBarrier& b) { --b.awaited; });
}
inline void mbarrier_arrive_cluster(unsigned address) { mbarrier_arrive(address); }
inline void mbarrier_publish_cluster(unsigned address) { mbarrier_arrive(address); }
inline void mbarrier_arrive_expect(unsigned address, unsigned bytes) {
  change(address, [&](MBarrier& b) { b.bytes += static_cast<int>(bytes), --b.awaited; });
}
inline void mbarrier_wait(unsigned address, unsigned parity) {
  const int& phase = barriers.at(at(address)).phase;
  while (phase % 2 == static_cast<int>(parity)) wait_while(phase, int{phase});
  // Of the first warp one thread waits. Others wait together: no lane acts before all have seen the phase.
  if (threadIdx.x >= 32) __syncwarp();
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
inline uint2 ld_shared2(unsigned address) { return load<uint2>(address); }
inline int4 ld_shared4(unsigned address) { return load<int4>(address); }
template <int kSize>
void ld_shared(unsigned address, unsigned (&words)[kSize]) {
  std::memcpy(words, at(address), sizeof(words));
}
inline void st_shared(unsigned address, const unsigned (&words)[4]) { store(address, words); }
inline void st_shared(unsigned address, uint2 words) { store(address, words); }
inline void st_shared(unsigned address, float value) { store(address, value); }
inline void st_shared(unsigned address, const float4& words) { store(address, words); }
inline float4 ld_cluster(unsigned address) { return load<float4>(address); }
inline void st_cluster(unsigned address, const int4& words) { store(address, words); }
inline void stmatrix_x4(unsigned address, const unsigned (&words)[4]) {
  const unsigned lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) store(__shfl_sync(~0u, address, i * 8 + lane / 4) + lane % 4 * 4, words[i]);
}
inline void stmatrix_x4_trans(unsigned address, const unsigned (&words)[4]) {
  const auto rows = exchange(address, [](auto& all, unsigned) { return std::to_array(all); });
  const unsigned lane = threadIdx.x % 32;
  for (int i = 0; i < 8; ++i) {
    const unsigned row = i / 2 * 8 + lane % 4 * 2 + i % 2;
    store(rows[row] + lane / 4 * 2, static_cast<unsigned short>(words[i / 2] >> i % 2 * 16));
  }
}
inline void ldmatrix_x4_trans(unsigned (&)[4], unsigned) { std::abort(); }

// Boxes, swizzled by 128.
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
template <class Use>
void for_box(const void* from, unsigned shared, int element, int row, int matrix, Use use) {
  const TensorMap& map = *static_cast<const TensorMap*>(from);
  for (int i = 0; i < map.box; ++i) {
    for (int j = 0; j < map.wide; ++j) {
      const int byte = element * map.element + j;
      const unsigned to = shared + i * map.wide + j;
      const bool inside = row + i < map.rows && byte < map.bytes;
      const long long place = (static_cast<long long>(matrix) * map.rows + row + i) * map.bytes + byte;
      use(at(map.swizzles ? swizzled(to) : to), inside ? map.data + place : nullptr);
    }
  }
}
inline void tile_load(unsigned shared, const void* map, unsigned barrier, int element, int row, int matrix = 0) {
  for_box(map, shared, element, row, matrix, [](auto* to, auto* from) { *to = from ? *from : 0; });
  const auto& of = *static_cast<const TensorMap*>(map);
  change(barrier, [&](MBarrier& b) { b.bytes -= of.box * of.wide; });
}
// Of a map that ends with a group: row i + end - 2^30, of the rows before `end`.
inline void tile_load(unsigned shared, const void* from, unsigned barrier, int element, int i, int, int end) {
  TensorMap map = *static_cast<const TensorMap*>(from);
  map.rows = std::min(map.rows, end);
  for_box(&map, shared, element, i - (1 << 30) + end, 0, [](auto* to, auto* from) { *to = from ? *from : 0; });
  change(barrier, [&](MBarrier& b) { b.bytes -= map.box * 128; });
}
inline void bulk_load(unsigned shared, const void* from, unsigned bytes, unsigned barrier) {
  std::memcpy(at(shared), from, bytes);
  change(barrier, [&](MBarrier& b) { b.bytes -= static_cast<int>(bytes); });
}
inline void tile_load_multicast(unsigned shared, const void* map, unsigned barrier, unsigned short blocks, int element,
                                int row) {
  for (int i = 0; i < cluster; ++i) {
    if (blocks >> i & 1) tile_load(in_cluster(shared, i), map, in_cluster(barrier, i), element, row);
  }
}
inline void tile_store(const void* map, unsigned shared, int element, int row, int matrix = 0) {
  current->begun.push_back([=] {
    for_box(map, shared, element, row, matrix, [](auto* from, auto* to) {
      if (to) *to = *from;
    });
  });
}
template <int>
void cp_async(unsigned, const void*, bool) {
  std::abort();
}
inline void cp_async_arrive(unsigned) { std::abort(); }
inline void cp_async_wait_all() { std::abort(); }
inline void prefetch_map(const TensorMap&) {}
template <int kPending>
void bulk_wait_read() {
  for (auto& committed = current->committed; committed.size() > kPending; committed.pop_front()) {
    for (const auto& store : committed.front()) store();
  }
}
inline void bulk_commit() { current->committed.push_back(std::exchange(current->begun, {})); }
inline void fence_async_shared() {}
template <int>
void give_registers() {}
template <int>
void take_registers() {}

inline unsigned wgmma_operand(unsigned shared, unsigned leading = 16) { return leading / 16 << 16 | shared / 16; }
template <bool = false>
inline unsigned long long wgmma_base(unsigned operand) {
  return operand;
}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int>
void wgmma_wait() {
  __syncwarp();
}
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
inline float bf16_value(unsigned bits) { return std::bit_cast<float>(bits << 16); }

// This thread's sums of 64 rows by kColumns columns, kDepth contraction indices: a(row, i) * b(column, i).
template <int kColumns, int kDepth, int kSize, class A, class B>
void multiply(float (&sums)[kSize], int add, A a, B b) {
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    float sum = add ? sums[i] : 0;
    for (int j = 0; j < kDepth; ++j) sum += a(row, j) * b(column, j);
    sums[i] = sum;
  }
}
// An element of 16 bits of an operand.
template <bool kKMajor>
float wide(unsigned operand, int row, int i) {
  const unsigned place = kKMajor ? row * 128 + i * 2 : (row / 64) * (operand >> 16) * 16 + i * 128 + row % 64 * 2;
  return bf16_value(load<unsigned short>(swizzled(operand % 65536 * 16 + place)));
}
template <int kColumns>
struct Wgmma {
  template <bool kBf16, bool kKMajorA, bool kKMajorB, int kSize>
  static void run(float (&sums)[kSize], unsigned a, unsigned b, int add) {
    static_assert(kBf16);
    multiply<kColumns, 16>(
        sums, add, [&](int row, int i) { return wide<kKMajorA>(a, row, i); },
        [&](int column, int i) { return wide<kKMajorB>(b, column, i); });
  }
};
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
      return values[e5m2 * 256 + *at(swizzled(operand % 65536 * 16 + row * 128 + i))];
    };
    multiply<kColumns, 32>(
        sums, add, [&](int row, int i) { return read(a, row, i, kE5M2A); },
        [&](int column, int i) { return read(b, column, i, kE5M2B); });
  }
};
// Four words of each of the lanes of a row: this and the next index of the rows lane / 4 and 8 further, then 8 indices
// further.
template <int kColumns>
struct WgmmaRegisters {
  template <int kSize>
  static void run(float (&sums)[kSize], const unsigned* words, unsigned long long b, int add) {
    // Of two products, so that lanes may go on to the next.
    static unsigned of_warps[JF_WARPS][2][32][4];
    auto& of_lanes = of_warps[current->first_warp + threadIdx.x / 32][current->products++ % 2];
    std::copy_n(words, 4, of_lanes[threadIdx.x % 32]);
    __syncwarp();
    const auto a = [&](int row, int i) {
      const unsigned word = of_lanes[row % 8 * 4 + i % 8 / 2][row % 16 / 8 + i / 8 * 2];
      return bf16_value(i % 2 ? word >> 16 : word & 0xffff);
    };
    multiply<kColumns, 16>(sums, add, a,
                           [&](int column, int i) { return wide<true>(static_cast<unsigned>(b), column, i); });
  }
};
template <class Compute>
unsigned of_halves(unsigned a, unsigned b, Compute compute) {
  return bf16x2_from_f32(compute(bf16_value(a & 0xffff), bf16_value(b & 0xffff)),
                         compute(bf16_value(a >> 16), bf16_value(b >> 16)));
}
inline unsigned mul_bf16x2_low(unsigned a, unsigned b) {
  return of_halves(a, (b & 0xffff) * 0x10001, [](float x, float y) { return x * y; });
}
inline unsigned mul_bf16x2_high(unsigned a, unsigned b) {
  return of_halves(a, (b >> 16) * 0x10001, [](float x, float y) { return x * y; });
}
inline unsigned turn_8x8(unsigned pair) {
  const unsigned lane = threadIdx.x % 32;
  unsigned turned = 0;
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned from = __shfl_sync(~0u, pair, (lane % 4 * 2 + i) * 4 + lane / 8);
    turned |= (from >> lane / 4 % 2 * 16 & 0xffff) << i * 16;
  }
  return turned;
}
inline unsigned mul_bf16x2(unsigned a, unsigned b) {
  return of_halves(a, b, [](float x, float y) { return x * y; });
}
inline unsigned fma_of_half(unsigned a, unsigned half, unsigned added) {
  return of_halves(a, half * 0x10001, [&](float x, float y) { return std::fma(x, y, bf16_value(added)); });
}
inline unsigned fma_bf16x2_low(unsigned a, unsigned b, unsigned c) { return fma_of_half(a, b & 0xffff, c & 0xffff); }
inline unsigned fma_bf16x2_high(unsigned a, unsigned b, unsigned c) { return fma_of_half(a, b >> 16, c >> 16); }

// Runs body(shared memory) in all threads of `blocks` blocks, so many in a cluster. Shared memory begins as NaN.
template <class Body>
void launch(int blocks, int in_cluster, Body body) {
  gridDim.x = blocks, cluster = in_cluster;
  all.clear();
  for (int i = 0; i < blocks / cluster; ++i) all.emplace_back(cluster * kThreads);
  std::memset(memory, 0xff, sizeof(memory));
  const auto set = [](Thread& t, int i) {
    t.block = {static_cast<unsigned>(i / kThreads)}, t.thread = {static_cast<unsigned>(i % kThreads)};
    t.first_warp = i / kThreads * (kThreads / 32);
  };
  run_threads(blocks * kThreads, set, [&] { body(memory[blockIdx.x].bytes); });
}

}  // namespace ptx
}  // namespace jf

#include <fstream>
#include <iterator>

#include "grouped/cuda/hopper_contraction.cuh"
#include "grouped/cuda/hopper_rows.cuh"

// An array in a file.
inline std::vector<unsigned char> read(const char* name) {
  std::ifstream file(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
template <class T>
T* data(std::vector<unsigned char>& bytes) {
  return reinterpret_cast<T*>(bytes.data());
}
