#include "plan/strips.h"

#include <algorithm>

#include "base/integers.h"
#include "base/target.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

// Of a block, and how many blocks a multiprocessor has at once. Left to itself the compiler makes room for four of them
// (32 registers) and has 3 or 4 of a thread's 8 accesses on their way.
constexpr int64_t kStripThreads = 512, kBlocks = 2;
// What should be on its way in a multiprocessor, in accesses of each thread of one block and of two: 64 KB. With 16 KB
// rows of 16384 bf16 went at 0.93 to 0.94 of what other kernels reach.
constexpr int64_t kUnrollAlone = 8, kStripUnroll = 4;
// Fewer rows leave most of the threads little. And the most of them with which strips of less than a line beat parts.
constexpr int64_t kFewestStripRows = 1024, kMostStripRows = 2048;

// All of these of a GPU of the usual size, whatever the target has: an exported program brings what is kept between
// the kernels of its plan, and may run on any.
//
// Wide strips are worth some multiprocessors that idle: with 64 KB each, two thirds of them have on their way what
// memory needs, and accesses are fewer and longer. 2048 rows of 3072 bf16 took 5.0 us in 96 strips of 64 bytes and 6.5
// in 192 of 32, of 8192 9.6 in 128 of 128 and 11.2 in 256 of 64.
constexpr int64_t kFewestLines = kUsualMultiprocessors * 2 / 3;
// Half a line is the least: of 1536 columns 3.7 us in 48 strips of 64 bytes and 4.2 in 96 of 32 (and in parts).
constexpr int64_t kFewestHalves = kUsualMultiprocessors / 3;
// With many rows, of which parts would keep all busy.
constexpr int64_t kFewestOfManyRows = kUsualMultiprocessors * 9 / 10;
constexpr int64_t kMostLines = kBlocks * kUsualMultiprocessors;

}  // namespace

Strips strips_of(int64_t rows, int64_t columns, int64_t bytes, const Target& target) {
  const int64_t row = columns * bytes;
  if (target.platform != Platform::kCuda || rows < kFewestStripRows || row % kLine != 0 || row / kLine > kMostLines) {
    return {};
  }
  const int64_t line = row / kLine >= kFewestLines ? kLine : kLine / 2;
  const int64_t blocks = row / line;
  if (blocks < kFewestHalves) return {};
  Strips strips;
  strips.threads = line / kMaxVectorBytes;
  strips.threads_y = kStripThreads / strips.threads;
  const int64_t unroll = blocks < 2 * kFewestOfManyRows ? kUnrollAlone : kStripUnroll;
  strips.unroll = std::min(unroll, divide_up(rows, strips.threads_y));
  return strips;
}

bool strips_beat_parts(int64_t rows, int64_t columns, int64_t bytes, const Target& target) {
  const int64_t threads = strips_of(rows, columns, bytes, target).threads;
  const bool lines = threads * kMaxVectorBytes == kLine && columns * bytes / kLine >= kFewestOfManyRows;
  return threads > 0 && (rows <= kMostStripRows || lines);
}

}  // namespace jf::plan
