#include "plan/strips.h"

#include <algorithm>

#include "base/integers.h"

namespace jf::plan {
namespace {

constexpr int64_t kVectorBytes = 16, kLine = 128, kShortestLine = 32;
// Of a block, and how many blocks a multiprocessor has at once. Left to itself the compiler makes room for four of them
// (32 registers) and has 3 or 4 of a thread's 8 accesses on their way.
constexpr int64_t kThreads = 512, kBlocks = 2;
// What should be on its way in a multiprocessor, in accesses of each thread of one block and of two: 64 KB. With 16 KB
// rows of 16384 bf16 went at 0.93 to 0.94 of what other kernels reach.
constexpr int64_t kUnrollAlone = 8, kUnroll = 4;
// Fewer rows leave most of the threads little. And the most of them with which strips beat parts: of 2048 rows, bf16,
// by hand, 2048 columns took 4.9 us (in parts 5.5), 8192 took 10.3 (in parts 11.4).
constexpr int64_t kFewestRows = 1024, kMostRows = 2048;

}  // namespace

Strips strips_of(int64_t rows, int64_t columns, int64_t bytes, const Target& target) {
  const int64_t row = columns * bytes, most = kBlocks * target.multiprocessors;
  if (target.platform != Platform::kCuda || rows < kFewestRows || row % kLine != 0 || row / kLine > most) return {};
  // A few multiprocessors may idle.
  const int64_t one_each = target.multiprocessors * 9 / 10;
  int64_t line = row / kLine < kBlocks * one_each ? kLine / 2 : kLine;
  if (row / line < one_each) line = kShortestLine;
  const int64_t blocks = row / line;
  if (blocks < one_each) return {};
  Strips strips;
  strips.threads = line / kVectorBytes;
  strips.threads_y = kThreads / strips.threads;
  const int64_t unroll = blocks <= target.multiprocessors ? kUnrollAlone : kUnroll;
  strips.unroll = std::min(unroll, divide_up(rows, strips.threads_y));
  return strips;
}

bool strips_beat_parts(int64_t rows, int64_t columns, int64_t bytes, const Target& target) {
  return rows <= kMostRows && strips_of(rows, columns, bytes, target).threads > 0;
}

}  // namespace jf::plan
