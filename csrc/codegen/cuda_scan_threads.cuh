// Scans over the threads of a block: each thread its own elements, shuffles within a warp, then shared memory between
// warps. All threads of the block call them together. The order is fixed, so equal blocks give equal bits.
//
// Elements come in runs: kRun neighbouring registers of each thread follow each other, then those of the next thread;
// after the last thread, the next run of the first one.
#pragma once

#include "codegen/cuda_fold_threads.cuh"
#include "codegen/cuda_scan.cuh"

namespace jf {

// A scan without elements before it.
struct Nothing {};

template <class Op, class T, int V>
JF_FUNCTION Lanes<T, V> lanes_before(Nothing) {
  Lanes<T, V> result;
  fill<Op>(result);
  return result;
}
template <class Op, class T, int V, int W>
JF_FUNCTION Lanes<T, V> lanes_before(const Lanes<T, W>& carry) {
  static_assert(V <= W, "a carry has a value for each lane");
  Lanes<T, V> result;
#pragma unroll
  for (int i = 0; i < V; ++i) result.v[i] = carry.v[i];
  return result;
}
template <class T, int V>
JF_FUNCTION void set_carry(Nothing, const Lanes<T, V>&) {}
template <class T, int V, int W>
JF_FUNCTION void set_carry(Lanes<T, W>& carry, const Lanes<T, V>& total) {
#pragma unroll
  for (int i = 0; i < W; ++i) carry.v[i] = total.v[V == 1 ? 0 : i];
}

// What the thread `source` of this warp holds.
template <class T>
JF_FUNCTION T shuffle_from(u32 mask, T x, int source) {
  return shuffled(x, [=](u32 word) { return __shfl_sync(mask, word, source); });
}
// Scans each value over kWidth neighbouring threads of a warp; `place` numbers them in the order of the scan.
template <class Op, Order kOrder, int kWidth, class T, int V>
JF_FUNCTION void scan_warp(u32 mask, int lane, int place, Lanes<T, V>& values) {
#pragma unroll
  for (int distance = 1; distance < kWidth; distance *= 2) {
    const int source = kOrder == kReverse ? lane + distance : lane - distance;
    const Lanes<T, V> sum = Op::of(map<T>([&](T x) { return shuffle_from(mask, x, source); }, values), values);
    if (place >= distance) values = sum;
  }
}
// The values of the thread before, or nothing.
template <class Op, Order kOrder, class T, int V>
JF_FUNCTION Lanes<T, V> from_thread_before(u32 mask, int lane, int place, const Lanes<T, V>& values) {
  const int source = kOrder == kReverse ? lane + 1 : lane - 1;
  const Lanes<T, V> others = map<T>([&](T x) { return shuffle_from(mask, x, source); }, values);
  return place > 0 ? others : lanes_before<Op, T, V>(Nothing{});
}

// Values of the threads along x, in V runs. `before` becomes what stands before the thread's elements of each run.
template <class Op, class B, Order kOrder, class T, int V, class Carry, int kBytes>
JF_FUNCTION void scan_columns(const Lanes<T, V>& totals, Lanes<T, V>& before, Carry& carry, Scratch<kBytes> scratch) {
  constexpr int kWidth = smaller_of(B::kColumns, kWarp), kWarps = B::kColumns / kWidth;
  constexpr bool kBack = kOrder == kReverse;
  const u32 mask = B::warp_mask();
  const int lane = B::thread() % kWarp, column = B::column() % kWidth, place = kBack ? kWidth - 1 - column : column;
  Lanes<T, V> sums = totals;
  scan_warp<Op, kOrder, kWidth>(mask, lane, place, sums);
  before = from_thread_before<Op, kOrder>(mask, lane, place, sums);
  Lanes<T, 1> running = lanes_before<Op, T, 1>(carry);
  if constexpr (kWarps == 1) {
    const int last = lane - column + (kBack ? 0 : kWidth - 1);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int v = kBack ? V - 1 - i : i;
      before.v[v] = fold_two<Op>(running.v[0], before.v[v]);
      running.v[0] = fold_two<Op>(running.v[0], shuffle_from(mask, sums.v[v], last));
    }
  } else {
    // Whole warps. The sums of all warps and runs stand in the order of the scan; every warp scans them.
    constexpr int kItems = V * kWarps;
    static_assert(kItems * B::kRows * int(sizeof(T)) <= kBytes, "the scratch is too small for this scan");
    T* const items = reinterpret_cast<T*>(scratch.bytes) + B::row() * kItems;
    const int warp = kBack ? kWarps - 1 - B::column() / kWarp : B::column() / kWarp;
    if (place == kWarp - 1) {
#pragma unroll
      for (int v = 0; v < V; ++v) items[(kBack ? V - 1 - v : v) * kWarps + warp] = sums.v[v];
    }
    __syncthreads();
#pragma unroll
    for (int first = 0; first < kItems; first += kWarp) {
      Lanes<T, 1> item = lanes_before<Op, T, 1>(Nothing{});
      if (first + lane < kItems) item.v[0] = items[first + lane];
      scan_warp<Op, kForward, smaller_of(power_of_two_from(kItems), kWarp)>(mask, lane, lane, item);
      const Lanes<T, 1> until = Op::of(running, from_thread_before<Op, kForward>(mask, lane, lane, item));
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int run = (kBack ? V - 1 - v : v) * kWarps;
        if (run + kWarps <= first || run >= first + kWarp) continue;
        const T prefix = shuffle_from(mask, until.v[0], (run + warp) % kWarp);
        const T sum = fold_two<Op>(prefix, before.v[v]);
        before.v[v] = (run + warp) / kWarp == first / kWarp ? sum : before.v[v];
      }
      running = Op::of(running, Lanes<T, 1>{{shuffle_from(mask, item.v[0], smaller_of(kItems - first, kWarp) - 1)}});
    }
    __syncthreads();  // the scratch is free again
  }
  set_carry(carry, running);
}

// Values of the threads along y, each lane and column by itself.
template <class Op, class B, Order kOrder, class T, int W, class Carry, int kBytes>
JF_FUNCTION void scan_rows(const Lanes<T, W>& totals, Lanes<T, W>& before, Carry& carry, Scratch<kBytes> scratch) {
  constexpr int kRound = values_at_once<T, W, B::kThreads, kBytes>();
  T* const items = reinterpret_cast<T*>(scratch.bytes);
  Lanes<T, W> running = lanes_before<Op, T, W>(carry);
#pragma unroll
  for (int first = 0; first < W; first += kRound) {
#pragma unroll
    for (int i = 0; i < kRound && first + i < W; ++i) items[i * B::kThreads + B::thread()] = totals.v[first + i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRound && first + i < W; ++i) {
      T sum = running.v[first + i];
      for (int r = 0; r < B::kRows; ++r) {
        const int row = kOrder == kReverse ? B::kRows - 1 - r : r;
        before.v[first + i] = row == B::row() ? sum : before.v[first + i];
        sum = fold_two<Op>(sum, items[i * B::kThreads + row * B::kColumns + B::column()]);
      }
      running.v[first + i] = sum;
    }
    __syncthreads();  // the scratch is free again
  }
  set_carry(carry, running);
}

// Scans an array over the threads along x or y, as kOver says, and with kLanes over its lanes; B is a Block. `carry`
// holds what stands before the first element, and takes what stands before the next one. The scratch is free before and
// after.
template <class Op, class B, int kOver, int kRun, Order kOrder, int kBytes, class T, int W, int N, class Carry>
JF_FUNCTION void scan_threads(Scratch<kBytes> scratch, Lanes<T, W> (&array)[N], Carry&& carry) {
  static_assert(N % kRun == 0, "an array is runs of equally many elements");
  constexpr bool kBack = kOrder == kReverse, kInLanes = (kOver & kLanes) != 0;
  constexpr int kRuns = N / kRun;
  // Each thread by itself.
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int at = kBack ? N - 1 - n : n, before = kBack ? at + 1 : at - 1;
    if constexpr (kInLanes) array[at] = scanned<Op, kBack>(array[at]);
    if (n % kRun == 0) continue;
    const Lanes<T, W> sum = kInLanes ? last_lane<kBack>(array[before]) : array[before];
    array[at] = Op::of(sum, array[at]);
  }
  if constexpr (kOver & kX) {
    constexpr int kLast = kInLanes && !kBack ? W - 1 : 0;  // without lanes along the row, the first one has its element
    Lanes<T, kRuns> totals, before;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) totals.v[r] = array[kBack ? r * kRun : r * kRun + kRun - 1].v[kLast];
    scan_columns<Op, B, kOrder>(totals, before, carry, scratch);
#pragma unroll
    for (int n = 0; n < N; ++n) array[n] = Op::of(splat(Type<Lanes<T, W>>{}, before.v[n / kRun]), array[n]);
  } else {
    static_assert(!kInLanes, "threads along y scan columns, one in each lane");
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int run = (kBack ? kRuns - 1 - i : i) * kRun;
      Lanes<T, W> before = array[run];
      Lanes<T, W> running = lanes_before<Op, T, W>(carry);
      scan_rows<Op, B, kOrder>(array[kBack ? run : run + kRun - 1], before, running, scratch);
#pragma unroll
      for (int n = run; n < run + kRun; ++n) array[n] = Op::of(before, array[n]);
      set_carry(carry, running);
    }
  }
}
template <class Op, class B, int kOver, int kRun, Order kOrder, int kBytes, class T, int W, class Carry>
JF_FUNCTION void scan_threads(Scratch<kBytes> scratch, Lanes<T, W>& x, Carry&& carry) {
  Lanes<T, W> array[1] = {x};
  scan_threads<Op, B, kOver, kRun, kOrder>(scratch, array, carry);
  x = array[0];
}

// What a run of a linear recurrence makes of what stands before it: `factor` times that, and `value`.
template <class T>
struct Step {
  T factor, value;

  // The product of many factors may be infinite: times nothing it adds nothing, times 0 it is 0. With kForgets a factor
  // of NaN forgets.
  template <bool kForgets>
  JF_FUNCTION Step of(const Step& a, const Step& b) {
    const T product = a.factor * b.factor;
    const bool undefined = product != product && a.factor == a.factor && b.factor == b.factor;
    const bool is_nan = b.factor != b.factor;
    const bool alone = kForgets ? is_nan || a.value == T(0) : a.value == T(0) && !is_nan;
    return {undefined ? T(0) : product, alone ? b.value : b.factor * a.value + b.value};
  }
};
template <class T, class Shuffle>
JF_FUNCTION Step<T> shuffled(Step<T> x, Shuffle shuffle) {
  return {shuffled(x.factor, shuffle), shuffled(x.value, shuffle)};
}
// As an op that scans.
template <bool kForgets>
struct Steps {
  template <class T, int V>
  JF_FUNCTION Lanes<Step<T>, V> of(const Lanes<Step<T>, V>& a, const Lanes<Step<T>, V>& b) {
    return map<Step<T>>([](const Step<T>& x, const Step<T>& y) { return Step<T>::template of<kForgets>(x, y); }, a, b);
  }
};
template <class Op, class T, int V>
JF_FUNCTION void fill(Lanes<Step<T>, V>& x) {
#pragma unroll
  for (int i = 0; i < V; ++i) x.v[i] = {T(1), T(0)};
}

template <class T, int W>
JF_FUNCTION Nothing steps_of(Nothing) {
  return {};
}
template <class T, int W>
JF_FUNCTION Lanes<Step<T>, W> steps_of(const Lanes<T, W>& carry) {
  return map<Step<T>>([](T x) { return Step<T>{T(1), x}; }, carry);
}
JF_FUNCTION void set_values(Nothing, Nothing) {}
template <class T, int W>
JF_FUNCTION void set_values(Lanes<T, W>& carry, const Lanes<Step<T>, W>& steps) {
  carry = map<T>([](const Step<T>& x) { return x.value; }, steps);
}

// A run of elements from what stands before it.
template <bool kForgets, int kRun, Order kOrder, bool kInLanes, class T, int W>
JF_FUNCTION void recur_run(Lanes<T, W>* array, const Lanes<T, W>* factors, Lanes<T, W> running) {
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    const int n = kOrder == kReverse ? kRun - 1 - k : k;
    if constexpr (kInLanes) {
      array[n] = recur_lanes<kForgets, kOrder>(running, factors[n], array[n]);
    } else {
      array[n] = recur<kForgets>(running, factors[n], array[n]);
    }
  }
}

// As scan_threads, a linear recurrence, of whose elements each is what stands before it: what each run makes of what
// stands before it is scanned over the threads, then each thread goes along its runs once more.
template <bool kForgets, class B, int kOver, int kRun, Order kOrder, int kBytes, class T, int W, int N, class Carry>
JF_FUNCTION void recur_threads(Scratch<kBytes> scratch, Lanes<T, W> (&array)[N], Lanes<T, W> (&factors)[N],
                               Carry&& carry) {
  static_assert(N % kRun == 0, "an array is runs of equally many elements");
  constexpr bool kBack = kOrder == kReverse, kInLanes = (kOver & kLanes) != 0, kAlongX = (kOver & kX) != 0;
  static_assert(kAlongX || !kInLanes, "threads along y scan columns, one in each lane");
  constexpr int kRuns = N / kRun, kValues = kAlongX ? 1 : W;
  auto steps = steps_of<T, W>(carry);
  Lanes<Step<T>, kAlongX ? kRuns : 1> totals, all_before;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int r = kBack ? kRuns - 1 - i : i;
    Lanes<Step<T>, kValues> total;
    fill<Steps<kForgets>>(total);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const int n = r * kRun + (kBack ? kRun - 1 - k : k);
#pragma unroll
      for (int l = 0; l < (kInLanes ? W : kValues); ++l) {
        const int lane = kInLanes && kBack ? W - 1 - l : l;
        Step<T>& own = total.v[kInLanes ? 0 : lane];
        own = Step<T>::template of<kForgets>(own, {factors[n].v[lane], array[n].v[lane]});
      }
    }
    if constexpr (kAlongX) {
      totals.v[r] = total.v[0];
    } else {
      Lanes<Step<T>, W> before;
      scan_rows<Steps<kForgets>, B, kOrder>(total, before, steps, scratch);
      Lanes<T, W> running;
      set_values(running, before);
      recur_run<kForgets, kRun, kOrder, false>(array + r * kRun, factors + r * kRun, running);
    }
  }
  if constexpr (kAlongX) {
    scan_columns<Steps<kForgets>, B, kOrder>(totals, all_before, steps, scratch);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const Lanes<T, W> running = splat(Type<Lanes<T, W>>{}, all_before.v[r].value);
      recur_run<kForgets, kRun, kOrder, kInLanes>(array + r * kRun, factors + r * kRun, running);
    }
  }
  set_values(carry, steps);
}
template <bool kForgets, class B, int kOver, int kRun, Order kOrder, int kBytes, class T, int W, class Carry>
JF_FUNCTION void recur_threads(Scratch<kBytes> scratch, Lanes<T, W>& x, Lanes<T, W>& factor, Carry&& carry) {
  Lanes<T, W> array[1] = {x}, factors[1] = {factor};
  recur_threads<kForgets, B, kOver, kRun, kOrder>(scratch, array, factors, carry);
  x = array[0];
}

}  // namespace jf
