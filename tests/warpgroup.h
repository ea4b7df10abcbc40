// A warpgroup of CUDA threads on a CPU, as far as the device headers need one that neither multiply nor copy by tensor
// maps: threads, shuffles and the functions that CUDA and PTX bring. For tests without a GPU.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __host__

struct uint4 {
  unsigned x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct Dim {
  unsigned x;
};
// A CUDA thread. They run by turns in one thread of the machine, each until it waits for others, in an order that is
// another at every turn and the same in every run.
struct Thread {
  Dim thread = {0}, block = {0};
  unsigned first_warp = 0;    // of its block
  const int* word = nullptr;  // it waits until this is no longer `value`
  int value = 0;
  bool done = false;
  std::vector<std::function<void()>> begun;  // copies since the last commit, and groups of those before
  std::deque<std::vector<std::function<void()>>> committed;
  unsigned products = 0;  // that it began
  ucontext_t context;
  std::unique_ptr<char[]> stack;
};
inline Thread outside;  // what runs without `run_threads`
inline Thread* current = &outside;
#define threadIdx (current->thread)

inline void wait_while(const int& word, int value) {
  if (word != value) return;
  if (current == &outside) std::abort();
  current->word = &word, current->value = value;
  swapcontext(&current->context, &outside.context);
}
inline std::function<void()> of_each;  // what they run
// Runs body() in `count` threads; set(thread, number) says who they are.
template <class Set, class Body>
void run_threads(int count, Set set, Body body) {
  constexpr size_t kStack = 1 << 18;
  std::deque<Thread> threads(count);
  of_each = body;
  for (int i = 0; i < count; ++i) {
    Thread& t = threads[i];
    set(t, i);
    t.stack = std::make_unique_for_overwrite<char[]>(kStack);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get(), t.context.uc_stack.ss_size = kStack;
    t.context.uc_link = &outside.context;
    makecontext(
        &t.context,
        +[] {
          of_each();
          current->done = true;
        },
        0);
  }
  unsigned random = 1;
  for (int left = count; left > 0;) {
    bool any = false;
    random = random * 1664525 + 1013904223;
    const long long first = random >> 8, step = 1 + (random >> 20) % 4 * 6;  // meets all: counts are 2^i * 3^j
    for (int i = 0; i < count; ++i) {
      Thread& t = threads[(first + i * step) % count];
      if (t.done || (t.word && *t.word == t.value)) continue;
      any = true, current = &t, t.word = nullptr;
      swapcontext(&outside.context, &t.context);
      left -= t.done;
    }
    current = &outside;
    if (!any) {
      std::fprintf(stderr, "%d of %d threads wait for ever\n", left, count);
      std::abort();
    }
  }
}
using std::max;
using std::min;
inline unsigned min(int a, unsigned b) { return std::min(static_cast<unsigned>(a), b); }

#ifndef JF_WARPS
#define JF_WARPS 4
#endif
inline constexpr int kLanes = 32;
inline unsigned exchanged[JF_WARPS][kLanes];
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void arrive_and_wait() {
    if (++arrived_ < count_) return wait_while(phase_, int{phase_});
    arrived_ = 0;
    ++phase_;
  }

 private:
  const int count_;
  int arrived_ = 0, phase_ = 0;
};
inline std::deque<Barrier> meeting = [] {
  std::deque<Barrier> made;
  for (int i = 0; i < JF_WARPS; ++i) made.emplace_back(kLanes);
  return made;
}();
template <class Read>
auto exchange(unsigned value, Read read) {
  const unsigned warp = current->first_warp + threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  exchanged[warp][lane] = value;
  meeting[warp].arrive_and_wait();
  const auto result = read(exchanged[warp], lane);
  meeting[warp].arrive_and_wait();
  return result;
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return std::bit_cast<T>(exchange(std::bit_cast<unsigned>(value), [&](auto& all, unsigned) { return all[from]; }));
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int by) {
  return std::bit_cast<T>(
      exchange(std::bit_cast<unsigned>(value), [&](auto& all, unsigned lane) { return all[lane ^ by]; }));
}
inline unsigned __shfl_up_sync(unsigned, unsigned value, unsigned by) {
  return exchange(value, [&](auto& all, unsigned lane) { return all[lane < by ? lane : lane - by]; });
}
inline unsigned __ballot_sync(unsigned, bool value) {
  return exchange(value, [](auto& all, unsigned) {
    unsigned bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= all[i] << i;
    return bits;
  });
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (by & 31));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popcll(unsigned long x) { return __builtin_popcountl(x); }
inline int __clzll(unsigned long x) { return x == 0 ? 64 : __builtin_clzl(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline void __syncthreads() { std::abort(); }
inline bool __syncthreads_or(bool) { std::abort(); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float erfinvf(float) { std::abort(); }
inline double erfinv(double) { std::abort(); }

namespace jf::ptx {

inline unsigned short bf16_from_f32(float x) {
  const unsigned bits = std::bit_cast<unsigned>(x);
  if (x != x) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline unsigned short f16_from_f32(float x) { return std::bit_cast<unsigned short>(static_cast<_Float16>(x)); }
inline float f32_from_f16(unsigned short x) { return static_cast<float>(std::bit_cast<_Float16>(x)); }
inline unsigned bf16x2_from_f32(float x, float y) { return bf16_from_f32(x) | unsigned{bf16_from_f32(y)} << 16; }
inline unsigned f16x2_from_f32(float x, float y) { return f16_from_f32(x) | unsigned{f16_from_f32(y)} << 16; }
inline void store_global(void* p, unsigned long low, unsigned long high) {
  const unsigned long words[] = {low, high};
  std::memcpy(p, words, sizeof(words));
}
inline void load_lasting(const void* p, unsigned long& low, unsigned long& high) {
  unsigned long words[2];
  std::memcpy(words, p, sizeof(words));
  low = words[0], high = words[1];
}
template <class T>
T load_now(const T* p) {
  return *p;
}
inline void st_global(void* p, const uint4& words) { std::memcpy(p, &words, sizeof(words)); }
inline void st_global(void* p, const uint2& words) { std::memcpy(p, &words, sizeof(words)); }
inline float max_nan(float x, float y) { return x != x ? x : y != y ? y : std::max(x, y); }
inline float min_nan(float x, float y) { return x != x ? x : y != y ? y : std::min(x, y); }
inline float reciprocal(float x) { return 1 / x; }
inline float reciprocal_approx(float x) { return 1 / x; }
inline float quotient(float x, float y) { return x / y; }
inline float exp2_approx(float x) { return std::exp2(x); }
inline float log2_approx(float x) { return std::log2(x); }
inline float tanh_approx(float x) { return std::tanh(x); }
template <int>
void take_halves(unsigned word, unsigned& low, unsigned& high) {
  low = word << 16, high = word & 0xffff0000;
}
inline int mask(bool where) { return where ? -1 : 0; }
inline bool neighbours_agree = true;  // whether what holds for a thread does for its warp
inline bool all_of_warp(bool where) { return where && neighbours_agree; }

}  // namespace jf::ptx

// What the text under test includes stands here; then main() below runs it.
