#include <algorithm>

#include "plan/pointwise_platforms.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using schedule::Parallel;
using schedule::Scheduler;

constexpr int64_t kPointwiseThreads = 128;
// A thread should have the bytes of one widest access on their way; narrower accesses are unrolled up to that. An H200
// then moves 4.0 to 4.2 TB/s; with twice the bytes 0 to 7 % less, with half 20 % less.
constexpr int64_t kMaxPointwiseUnroll = 8;
// Where lanes move, twice that: bias and gelu of 8191 rows of 5003 took 39.4 us instead of 41.5 (bf16), 76.6 instead of
// 79.9 (f32).
constexpr int64_t kMovedPointwiseVectors = 2;
// Blocks for each multiprocessor that must be left after unrolling, so that the last wave is a small part. Where lanes
// move: 4095 rows of 1537 bf16 took 8.8 us in 23 and 8.5 in 46, of f32 13.8 in 46 and 14.4 in 93.
constexpr int64_t kWaves = 8, kMovedWaves = 32;

void swap_axes(Scheduler& scheduler, ir::ValueId value, int axis) {
  std::vector<int> order;
  const int rank = static_cast<int>(scheduler.schedule().domains[value].loop.size());
  for (int i = 0; i < rank; ++i) order.push_back(i == axis ? axis + 1 : i == axis + 1 ? axis : i);
  scheduler.reorder(value, order);
}

// Bytes of an element that each iteration has of its own; 1 where iterations share them.
int64_t streamed_bytes(const Traffic& traffic, const Access& access) {
  for (size_t loop = 0; loop < traffic.extents.size(); ++loop) {
    if (traffic.extents[loop] > 1 && access.steps[loop] == 0) return 1;
  }
  return access.bytes;
}

}  // namespace

CudaPointwise propose_cuda(const Traffic& traffic, const Target& target) {
  CudaPointwise p;
  p.collapse = traffic.collapse;
  if (traffic.extents.empty()) return p;
  p.threads = kPointwiseThreads;
  int64_t elements = 1, widest = 1;
  for (int64_t extent : traffic.extents) elements *= extent;
  for (const Access& access : traffic.accesses) widest = std::max(widest, streamed_bytes(traffic, access));
  // What is read again and again comes from the cache, in as many accesses as it takes.
  Traffic streamed = traffic;
  for (Access& access : streamed.accesses) access.bytes = std::min(access.bytes, widest);
  // Where all is one loop and lies side by side, its last vector may be a part of one.
  const bool side_by_side = std::all_of(streamed.accesses.begin(), streamed.accesses.end(), [](const Access& access) {
    const bool whole = access.edges.empty() || access.edges.back() == 0;
    return access.bytes > 0 && access.steps.back() == 1 && whole;
  });
  if (streamed.extents.size() == 1 && side_by_side)
    streamed.extents[0] = round_up(streamed.extents[0], kMaxVectorBytes);
  // Small problems need threads more than wide accesses.
  p.lanes = vector_lanes(streamed, traffic.extents.size() - 1);
  p.lanes = coalesced_lanes(traffic, traffic.extents.size() - 1, p.lanes);
  // Lanes that move need a vector more along the row than its elements ask for.
  const size_t inner = traffic.extents.size() - 1;
  bool moves = false;
  if (p.lanes == 1 && inner > 0) {
    const int64_t moved = moved_lanes(streamed, inner), vectors = divide_up(traffic.extents[inner], moved);
    if (vectors % kPointwiseThreads != 0 && 4 * vectors >= 3 * round_up(vectors, kPointwiseThreads)) p.lanes = moved;
    moves = p.lanes > 1;
  }
  while (p.lanes > 1 && elements / (p.lanes * kPointwiseThreads) < target.multiprocessors) p.lanes /= 2;

  const int64_t vectors = divide_up(traffic.extents.back(), p.lanes);
  const bool threads_busy = 4 * vectors >= 3 * divide_up(vectors, kPointwiseThreads) * kPointwiseThreads;
  p.two_axes = traffic.extents.size() > 1 && threads_busy;
  const int64_t blocks = divide_up(elements, p.lanes * kPointwiseThreads);
  const int64_t most_bytes = moves ? kMovedPointwiseVectors * kMaxVectorBytes : kMaxVectorBytes;
  while (p.unroll < kMaxPointwiseUnroll && p.unroll * p.lanes * widest < most_bytes &&
         blocks / (2 * p.unroll) >= (moves ? kMovedWaves : kWaves) * target.multiprocessors) {
    p.unroll *= 2;
  }
  return p;
}

void schedule_cuda(Scheduler& scheduler, ir::ValueId reference, const CudaPointwise& p) {
  auto rank = [&] { return static_cast<int>(scheduler.schedule().domains[reference].loop.size()); };
  collapse(scheduler, reference, p.collapse);
  if (rank() == 0) return;
  if (p.lanes > 1) {
    scheduler.split(reference, -1, p.lanes);
    scheduler.parallelize(reference, -1, Parallel::kVector);
  }
  const int loops = rank() - (p.lanes > 1);
  const bool two_axes = p.two_axes && loops > 1;
  for (int i = two_axes ? 2 : 1; i < loops; ++i) scheduler.merge(reference, 0);
  // rows, columns -> row block, rows of a thread, column block, thread; or vectors -> block, vectors of a thread,
  // thread
  scheduler.split(reference, two_axes ? 1 : 0, p.threads);
  if (p.unroll > 1) scheduler.split(reference, 0, p.unroll);
  const int unrolled = p.unroll > 1;
  if (two_axes) {
    if (unrolled) swap_axes(scheduler, reference, 1);
    scheduler.merge(reference, 0);
  }
  scheduler.parallelize(reference, 0, Parallel::kBlock);
  if (unrolled) scheduler.parallelize(reference, 1, Parallel::kUnroll);
  scheduler.parallelize(reference, 1 + unrolled, Parallel::kThread);
}

}  // namespace jf::plan
