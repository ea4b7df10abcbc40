#include <algorithm>
#include <bit>
#include <limits>

#include "base/lists.h"
#include "base/target.h"
#include "plan/reduction_platforms.h"
#include "plan/runs.h"
#include "plan/scan_columns.h"
#include "plan/strategy_loops.h"
#include "plan/strips.h"
#include "plan/two_stages.h"

namespace jf::plan {
namespace {

using schedule::Parallel;
using schedule::Scheduler;

// Threads of a block where rows or columns leave the choice, and of one that reads long rows again and again.
constexpr int64_t kSmallBlock = 128, kBlock = 256, kLongRowBlock = 512;
// Vectors of a thread that are on their way together.
constexpr int64_t kFoldVectors = 4, kMaxFoldUnroll = 16;
// A thread has 255 registers of 4 bytes; arithmetic and addresses need most of the others. A row may take a quarter of
// a multiprocessor's registers, so that another block runs while this one waits for its threads: of 32768 bf16, keeping
// a row in 1024 threads took 1.25 times as long as reading it again. Half as much where no row is stored, so that the
// other block's loads are all that goes on.
constexpr int64_t kKeptBytes = 64 * 4, kKeptRowBytes = 64 << 10;
// With sums across rows that are one warp's, more: fewer threads wait for nothing.
constexpr int64_t kKeptBytesOfWarp = 96 * 4;
// Neighbouring columns of a block, so that it reads whole sectors, and the bytes of one.
constexpr int64_t kFewColumns = 8, kSector = 32;
// Bytes that are surely in the caches where a kernel has just left them, and rows of a thread then. f32, two results:
// 128 x 768 took 1.35 us instead of 1.46, 256 x 2048 1.8 instead of 2.3, 792 x 768 2.5 instead of 3.1.
constexpr int64_t kCachedBytes = 4 << 20, kCachedRows = 16;
// Sums of parts of an array's rows: bytes of a thread that are on their way, and threads of a multiprocessor that have
// registers for that; left to itself the compiler makes room for twice as many, which wait for part of the bytes each:
// 16384 bf16 rows of 2048 took 18.0 us instead of 18.6. Not the bytes where the rows of a part are taken in turn: 8191
// of 5003 took 23.2 us with 8 loads of a thread and 26.0 with 16.
constexpr int64_t kBytesOfPart = 128, kThreadsOfParts = 1024;
// Of rows of so many vectors each thread may take more.
constexpr int64_t kManyVectors = 512;
// Elements of a row that is one warp's where sums go across rows: no row waits for another warp. 65536 bf16 rows of 768
// took 91 us instead of 112.
constexpr int64_t kRowOfWarp = 1024;
// Of blocks that share a row. Few threads that keep much, so that many rows are on their way while the blocks of one
// wait for each other: 131072 bf16 in 8 blocks of 256 threads took 138 us (softmax), 150 (layer norm) and 70 (cross
// entropy), of 512 threads 173, 181 and 94; of 65536 in 4 blocks 132, 145 and 68 instead of 159, 170 and 90.
constexpr int64_t kThreadsOfClusterBlock = 256, kMostThreadsOfClusterBlock = 512, kElementsOfClusterThread = 64;
constexpr int64_t kKeptBytesOfClusterThread = 128 * 4, kKeptByClusterBlock = 128 << 10, kKeptWithSums = 96 << 10;
constexpr int64_t kElementsWithSums = 16;
// Vectors of a thread where lanes move, and what it may keep then: elements of 16 bits, of which some stay packed.
// Softmax's derivative, 8191 rows of 5003 in 128 threads each, took 60 us instead of 63. More where rows share no
// columns: 4095 of 1537 in a warp each, 11.4 instead of 12.9.
constexpr int64_t kMovedFoldVectors = 3, kKeptBytesMoved = 80 * 4, kKeptBytesMovedAlone = 112 * 4;
// Lanes of elements of 4 bytes, and of such rows the fewest vectors of a warp's thread.
constexpr int64_t kMovedWords = kMaxVectorBytes / 4, kFewestMovedWords = 4;
// What a vector more or less for each thread counts against busy threads.
constexpr double kPreference = 0.02;
// A row of as few vectors is one thread's, when there are rows for every thread.
constexpr int64_t kRowOfThread = 8, kManyRows = 32 << 10;
// Rows that one thread folds where there are columns for every thread: others would wait for it in shared memory for no
// more than a few rows each.
constexpr int64_t kRowsOfColumn = 64;
// Rows of as few vectors share a warp, each thread having at most so many of them: 128 bf16 to 8-bit floats took 0.19
// ms so and 0.34 in warps of their own, 64 bf16 normed 0.25 ms and 0.81 in threads of their own.
constexpr int64_t kRowOfPart = 32, kVectorsOfPart = 4;

struct Shape {
  size_t lane_loop = 0;
  int64_t lanes = 1;
  int64_t kept = 1, across = 1, folded = 1;
};

// Bytes that neighbouring threads along a loop read and write of lines in common, for each iteration of all loops.
double contiguous_bytes(const Traffic& traffic, size_t loop) {
  double bytes = 0;
  for (const Access& access : traffic.accesses) {
    const int64_t step = std::abs(access.steps[loop]);
    if (step == 0 || (step > 1 && step * access.bytes > kLine / 2)) continue;
    double share = static_cast<double>(access.bytes) / static_cast<double>(step);
    for (size_t other = 0; other < access.steps.size(); ++other) {
      if (access.steps[other] == 0) share /= static_cast<double>(std::max<int64_t>(traffic.extents[other], 1));
    }
    bytes += share;
  }
  return bytes;
}

// Bytes that are read for each iteration of all loops, where each element is read once.
double bytes_read(const Traffic& traffic) {
  double bytes = 0;
  for (const Access& access : traffic.accesses) {
    double share = access.stores ? 0 : static_cast<double>(access.bytes);
    for (size_t loop = 0; loop < access.steps.size(); ++loop) {
      if (access.steps[loop] == 0) share /= static_cast<double>(std::max<int64_t>(traffic.extents[loop], 1));
    }
    bytes += share;
  }
  return bytes;
}

// Whether all elements along the loop are computed from the same that is read.
bool reads_nothing_along(const Traffic& traffic, size_t loop) {
  return std::all_of(traffic.accesses.begin(), traffic.accesses.end(), [&](const Access& access) {
    return access.stores || access.bytes == 0 || access.steps[loop] == 0;
  });
}

Shape shape_of(const Traffic& traffic) {
  Shape shape;
  double most = -1;
  for (size_t loop = traffic.extents.size(); loop-- > 0;) {
    const int64_t extent = traffic.extents[loop];
    (traffic.folded[loop] ? shape.folded : traffic.across[loop] ? shape.across : shape.kept) *= extent;
    if (extent <= 1 || traffic.across[loop]) continue;
    const double bytes = contiguous_bytes(traffic, loop);
    if (bytes <= most) continue;
    most = bytes;
    shape.lane_loop = loop;
  }
  shape.lanes = coalesced_lanes(traffic, shape.lane_loop, vector_lanes(traffic, shape.lane_loop));
  if (traffic.extents.empty() || !traffic.folded[shape.lane_loop]) return shape;
  // Counts of a few kinds: each element that is read is part of all of them.
  for (size_t loop = traffic.extents.size(); loop-- > 0;) {
    const int64_t extent = traffic.extents[loop], lanes = extent & -extent;
    if (extent == 1 || traffic.folded[loop] || traffic.across[loop]) continue;
    if (extent > kMaxVectorBytes || lanes == 1 || !reads_nothing_along(traffic, loop)) break;
    shape.lane_loop = loop;
    shape.lanes = lanes;
    break;
  }
  return shape;
}

// The bytes of the narrowest element that vectors along the loop read.
int64_t narrowest(const RowFacts& facts, size_t lane_loop) {
  int64_t bytes = 8;
  for (const Access& access : facts.traffic.accesses) {
    if (access.steps[lane_loop] == 1 && access.bytes > 0) bytes = std::min(bytes, access.bytes);
  }
  return bytes;
}

// Lanes of rows that vectors do not divide. 8191 rows of 5003 bf16: softmax took 40 us instead of 47, cross entropy 25
// instead of 32, layer norm 52 instead of 54; f32: softmax 78 instead of 83, layer norm 79 instead of 85. But softmax
// of 65535 rows of 301 f32 took 42.8 us instead of 39.2: few vectors of a thread, and one of them is not whole. 4096
// rows that several blocks keep, softmax: of 50257 bf16 312 us instead of 650 (read again), f32 401 instead of 1058.
// Pairs move where blocks then keep rows, 30522 bf16 138 instead of 246, f32 260 instead of 549, and in f32: 65536 rows
// of 1026 145 instead of 158; not in bf16, where 94 us of cross entropy's derivative became 121.
int64_t lanes_that_move(const Traffic& traffic, const Shape& shape, const Target& target, int64_t cluster) {
  const bool one_loop = std::count(traffic.folded.begin(), traffic.folded.end(), true) == 1;
  if (shape.across > 1 || traffic.scans || !one_loop) return 1;
  const int64_t lanes = moved_lanes(traffic, shape.lane_loop);
  // Counters take the registers that a block's own rows need: those of argmax spilled.
  const bool counts = std::any_of(traffic.accesses.begin(), traffic.accesses.end(), [&](const Access& access) {
    return access.bytes == 0 && access.steps[shape.lane_loop] != 0;
  });
  const int64_t most = cluster * kMovedFoldVectors * lanes * (target.max_threads_per_block - kWarp);
  const bool unkept = cluster == 1 && 4 * shape.folded > kKeptRowBytes;  // in any number of vectors, then
  if (counts && cluster == 1 && !unkept) return 1;
  const int64_t fewest = kWarp * lanes * (lanes == kMovedWords ? kFewestMovedWords : 1);
  return shape.folded >= fewest && (unkept || shape.folded <= most) ? lanes : 1;
}

// What a thread and a block may keep of rows that are stored.
struct Room {
  int64_t thread_bytes = kKeptBytes, block_bytes = kKeptRowBytes, vectors = kMaxFoldUnroll;
};

// Keeps rows in registers where they fit. Accumulators of columns are there in any case.
void keep_rows(const RowFacts& facts, CudaReduction& p, int64_t vectors, const Room& room = {}) {
  const Phases phases = facts.phases(Keep::kRows);
  const int64_t elements = vectors * p.lanes, threads = p.threads * p.threads_y;
  if (vectors > room.vectors) return;
  if (phases.column_bytes > 0) p.unroll = vectors;
  const int64_t bytes = elements * (phases.kept_bytes + phases.column_bytes);
  if (p.cluster > 1) {
    const int64_t of_block = phases.column_bytes > 0 ? kKeptWithSums : kKeptByClusterBlock;
    const int64_t of_thread = phases.column_bytes > 0 ? kKeptBytesOfWarp : kKeptBytesOfClusterThread;
    if (phases.kept_bytes == 0 || bytes > of_thread || bytes * threads > of_block) return;
    p.unroll = vectors;
    p.keep = Keep::kRows;
    return;
  }
  const int64_t most = phases.column_bytes > 0 && p.threads == kWarp ? kKeptBytesOfWarp : room.thread_bytes;
  const bool all = stores_rows(facts.traffic, p.lane_loop) || kept_in_pairs(phases);
  const int64_t most_of_row = all ? room.block_bytes : room.block_bytes / 2;
  const bool fits = bytes <= most && elements * threads * phases.kept_bytes <= most_of_row;
  if (phases.kept_bytes == 0 || !fits) return;
  p.unroll = vectors;
  p.keep = Keep::kRows;
}

// Sets the threads of a row of so many vectors, each of which keeps `bytes` for a vector; returns the vectors of a
// thread. As few threads as possible idle; equally many of them work on each of the four parts of a multiprocessor.
int64_t threads_of_row(const RowFacts& facts, CudaReduction& p, int64_t vectors, int64_t bytes, int64_t kept_bytes,
                       const Phases& phases, const Target& target) {
  const int64_t size = narrowest(facts, p.lane_loop);
  const bool across = facts.traffic.across != std::vector<bool>(facts.traffic.across.size(), false);
  // Enough of a thread's bytes are on their way at once.
  int64_t wanted = std::clamp<int64_t>(kFoldVectors * kMaxVectorBytes / (p.lanes * size), kFoldVectors, kMaxFoldUnroll);
  // Rows that are folded twice and stored need more registers than rows that are folded once; of fewer threads that
  // keep more each, more rows are on their way. Layer norm, 16384 bf16: 251 us instead of 265 in rows of 16384, 19.3
  // instead of 20.1 in 2048 rows of 8192, softmax 248 instead of 259.
  const bool stored = stores_rows(facts.traffic, p.lane_loop), pairs = kept_in_pairs(phases);
  const bool whole = pairs && vector_lanes(facts.traffic, p.lane_loop) * size == kMaxVectorBytes;
  if (stored && whole && phases.count > 2 && vectors >= kManyVectors) wanted *= 2;
  // Single elements of f32 lie apart in registers that they fill: 8191 rows of 5003, in 384 threads instead of 640,
  // took 1.1 times as long (softmax's derivative, residual and rms norm).
  if (stored && p.lanes == 1 && size >= 4 && vectors >= 4 * kManyVectors) wanted /= 2;
  // Rows of 16 bits that are only read and kept, but not in pairs: folds are less of the work.
  const bool fits = vectors * p.lanes * 4 <= kKeptRowBytes / 2;
  if (!stored && !pairs && size < 4 && fits && vectors >= 2 * kManyVectors) wanted *= 2;
  // A block of a cluster has its part of one row at a time, or with sums across rows few of their registers.
  if (p.cluster > 1) wanted = (across ? kElementsWithSums : kElementsOfClusterThread) / p.lanes;
  const int64_t most_kept = p.cluster == 1 ? kept_bytes : across ? kKeptBytesOfWarp : kKeptBytesOfClusterThread;
  while (wanted > 1 && wanted * bytes > most_kept) wanted /= 2;
  if (across && vectors * p.lanes <= kRowOfWarp) wanted = divide_up(vectors, kWarp);
  const int64_t most = round_up(target.max_threads_per_block - kWarp + 1, kWarp);
  double best = -std::numeric_limits<double>::infinity();
  for (int64_t each = std::max<int64_t>(1, wanted - 1); each <= wanted + 3; ++each) {
    if (each > wanted && (each * bytes > kept_bytes || each > kMaxFoldUnroll)) break;
    int64_t threads = round_up(divide_up(vectors, each), kWarp);
    if (threads > 2 * kWarp) threads = round_up(threads, 4 * kWarp);
    threads = std::min(threads, most);
    const double busy = static_cast<double>(vectors) / static_cast<double>(threads * divide_up(vectors, threads));
    const double score = busy - kPreference * static_cast<double>(std::abs(divide_up(vectors, threads) - wanted));
    if (score <= best) continue;
    best = score;
    p.threads = threads;
  }
  return divide_up(vectors, p.threads);
}

// The bytes of the narrowest element that vectors along the loop read or store.
int64_t narrowest_of_all(const Traffic& traffic, size_t lane_loop) {
  int64_t bytes = kMaxVectorBytes;
  for (const Access& access : traffic.accesses) {
    if (access.steps[lane_loop] == 1 && access.bytes > 0) bytes = std::min(bytes, access.bytes);
  }
  return bytes;
}

bool stores_u4(const ir::Fusion& segment) {
  return std::any_of(segment.outputs.begin(), segment.outputs.end(),
                     [&](ir::ValueId id) { return segment.values[id].dtype == DType::kU4; });
}

// Short rows of whole vectors: several in a warp. A thread has as many vectors as make its narrowest access a whole
// one. Codes of four bits are bound by instructions, of which one thread for a row needs fewest: blocks of 32 bf16 as
// int4 took 163 us in one thread and 175 in two, 32768 x 7168 (H200).
bool in_parts_of_warps(const RowFacts& facts, const Shape& shape, CudaReduction& p) {
  const int64_t vectors = shape.folded / p.lanes;
  if (p.lanes == 1 || shape.across > 1 || shape.folded % p.lanes != 0) return false;
  const bool codes = stores_u4(facts.segment);
  if (vectors < kVectorsOfPart || vectors > kRowOfPart || (shape.kept < kManyRows && !codes)) return false;
  const int64_t power = vectors & -vectors, least = codes ? 1 : 2;  // threads
  const int64_t bits = codes ? 4 : 8 * narrowest_of_all(facts.traffic, shape.lane_loop);
  int64_t each = std::min(kVectorsOfPart, std::max<int64_t>(1, 8 * kMaxVectorBytes / (p.lanes * bits)));
  while (each > 1 && power / each < least) each /= 2;
  if (vectors / power * each > kVectorsOfPart) return false;
  p.threads = power / each;
  p.threads_y = kSmallBlock / p.threads;
  p.unroll = vectors / p.threads;
  keep_rows(facts, p, p.unroll);
  return true;
}

// Other short rows: several in a warp all the same, so that most of its threads have an element and folds take few
// steps: of single elements those steps are most of the work. Sums of 64 MB of f32 rows (of bf16, 32 MB) in threads of
// so many elements, H200:
//   15   2 of 8 36.8 us (24.5), 4 of 4 37.4 (32.6), 16 of 1 100 (98)    33   4 of 9 30.3 (18), 8 of 5 28.3 (25.7),
//   63   4 of 16 27.9 (23), 8 of 8 24.3 (20.1), 32 of 2 47.8 (49)            16 of 3 48 (45.8)
// Stored rows want their neighbours read together: softmax of 15 90 us, 52 and 105, of 33 63.8, 39.6 and 47.5, of 63
// 8 of 8 47.6, 16 of 4 46.5, 32 of 2 54.2.
bool in_uneven_parts_of_warps(const RowFacts& facts, const Shape& shape, CudaReduction& p) {
  constexpr int64_t kStoredOfThread = 5, kReadOfThread = 8, kNarrowOfThread = 12;
  const int64_t vectors = divide_up(shape.folded, p.lanes);
  if (shape.across > 1 || facts.traffic.scans || shape.kept < kManyRows) return false;
  if (vectors <= kRowOfThread || vectors > 2 * kWarp) return false;
  const bool cached = bytes_read(facts.traffic) < 1;
  const int64_t most = p.lanes > 1                                                    ? kVectorsOfPart
                       : stores_rows(facts.traffic, shape.lane_loop)                  ? kStoredOfThread
                       : cached || narrowest(facts, shape.lane_loop) == sizeof(float) ? kReadOfThread
                                                                                      : kNarrowOfThread;
  int64_t fewest = round_up(vectors, kWarp) + (vectors < kWarp);  // places in the threads of a row
  for (int64_t threads = kWarp / 2; threads > 1 && divide_up(vectors, threads) <= most; threads /= 2) {
    if (p.lanes > 1 && round_up(vectors, threads) >= fewest) continue;
    fewest = round_up(vectors, threads);
    p.threads = threads;
  }
  if (p.threads == 1) return false;
  p.threads_y = kSmallBlock / p.threads;
  p.unroll = divide_up(vectors, p.threads);
  keep_rows(facts, p, p.unroll);
  return true;
}

// A row that is one warp's has registers left for what all rows share, which then comes with the row and not after its
// folds, and for what they are converted to. Layer norm of 768 bf16: 16384 rows took 14.4 us instead of 15.1, 2048 rows
// 3.2 instead of 3.3.
void keep_more(const RowFacts& facts, CudaReduction& p, const Phases& phases) {
  const KeepMore more = {.columns = true, .converted = true};
  const Phases kept = split_phases(facts.segment, facts.traffic, Keep::kRows, more);
  const bool shares = !kept.columns.empty();
  const bool fits = (kept.all_kept_bytes + phases.all_kept_bytes) * p.unroll * p.lanes <= kKeptBytesOfWarp;
  p.keep_columns = p.keep_wide = shares && fits;
}

// Vectors of each array that a thread has on their way together, of as many as it reads one after another. Of three
// arrays and more registers hold fewer: moments and norms of Adam's step (LAMB), 4096 x 4099 f32, 269 us with four and
// 206 with two; the sum of the squares of 4096 x 4099 bf16, 4.6 vectors in a row, 11.2 with four and 9.7 with five
// (H200).
int64_t vectors_at_once(const RowFacts& facts, int64_t lanes, int64_t each) {
  constexpr int64_t kMostAlone = 6;
  const auto& accesses = facts.traffic.accesses;
  const int64_t arrays = std::count_if(accesses.begin(), accesses.end(), [](const Access& access) {
    return !access.stores && access.bytes > 0 && std::count(access.steps.begin(), access.steps.end(), 0) == 0;
  });
  if (lanes == 1) return std::min(each, kFoldVectors);
  if (arrays == 1 && each <= kMostAlone) return each;
  return std::min(each, arrays > 2 ? kFoldVectors / 2 : kFoldVectors);
}

CudaReduction along_row(const RowFacts& facts, const Shape& shape, const Target& target, int64_t cluster = 1) {
  CudaReduction p;
  p.cluster = cluster;
  p.lane_loop = static_cast<int>(shape.lane_loop);
  p.lanes = shape.lanes;
  if (cluster == 1 && in_parts_of_warps(facts, shape, p)) return p;
  const bool many = shape.kept >= kManyRows || stores_u4(facts.segment);
  if (cluster == 1 && shape.across == 1 && shape.folded / p.lanes <= kRowOfThread && many) {
    p.along = ThreadsAlong::kRows;
    p.threads = kSmallBlock;
    keep_rows(facts, p, shape.folded / p.lanes);
    p.unroll = std::max(p.unroll, shape.folded / p.lanes);
    return p;
  }
  if (cluster == 1 && in_uneven_parts_of_warps(facts, shape, p)) return p;
  const int64_t moved = lanes_that_move(facts.traffic, shape, target, cluster);
  const bool pairs = p.lanes == 2 && (cluster > 1 || moved == kMovedWords);
  const bool moves = moved > 1 && (p.lanes == 1 || pairs);  // each row has a vector more
  if (moves) p.lanes = moved;
  while (p.lanes > 1 && shape.folded / p.lanes < kWarp) p.lanes /= 2;
  const int64_t vectors = divide_up((shape.folded + (moves ? 2 * (p.lanes - 1) : 0)) / p.lanes, cluster);
  const Phases phases = facts.phases(Keep::kRows);
  const bool shares = reads_columns(facts.traffic, shape.lane_loop);
  const int64_t kept = !moves ? kKeptBytes : shares ? kKeptBytesMoved : kKeptBytesMovedAlone;
  int64_t each =
      threads_of_row(facts, p, vectors, p.lanes * (phases.kept_bytes + phases.column_bytes), kept, phases, target);
  if (moves) {
    // A vector to spare. Few threads: 160 and 224 of such rows took as long or up to 1.2 times as long as 128.
    if (cluster > 1) {
      p.threads = round_up(divide_up(vectors, each), kWarp);
    } else if (divide_up(shape.folded, p.lanes) % p.threads == 0) {
      p.threads += kWarp;
    }
    each = divide_up(vectors, p.threads);
  }
  const int64_t rows = shape.across > 1 ? shape.across : shape.kept;
  // Long rows of a warp that share nothing are blocks of their own: 4095 rows of 1537 bf16, cross entropy 6.5 us
  // instead of 7.3, softmax 8.3 instead of 8.8; but rms norm, whose rows share columns, 10.1 instead of 8.7.
  const bool own = p.threads > kWarp || (moves && each > kFoldVectors && !shares);
  const bool alone = shape.across == 1 && (own || rows < kSmallBlock / kWarp * target.multiprocessors);
  const bool much = p.threads == 2 * kWarp && each > kFoldVectors;
  if (!alone || (much && shape.across == 1))
    p.threads_y = std::min(rows, std::max<int64_t>(1, kSmallBlock / p.threads));
  p.unroll = vectors_at_once(facts, p.lanes, each);
  keep_rows(facts, p, each, {.thread_bytes = kept});
  if (p.keep == Keep::kRows && shape.across == 1 && p.threads == kWarp && !moves) keep_more(facts, p, phases);
  const bool only_read = !stores_rows(facts.traffic, p.lane_loop);
  const bool often = phases.count > 2 ? p.threads > kLongRowBlock : phases.count > 1 && only_read;
  if (p.keep == Keep::kNothing && often && phases.column_bytes == 0 && p.threads >= kLongRowBlock) {
    p.threads = kLongRowBlock;
    p.unroll = p.lanes > 1 ? kFoldVectors / 2 : kFoldVectors;
  } else if (p.keep == Keep::kNothing && often && phases.column_bytes == 0 && each > kFoldVectors &&
             vectors <= kFoldVectors * kLongRowBlock) {
    // In one round of loads: the correlation of 8191 rows of 6143 f32, of which a thread has 6 vectors of each or 4,
    // took 136 us and 109 (H200).
    p.threads = round_up(divide_up(vectors, kFoldVectors), kWarp);
    p.unroll = kFoldVectors;
  }
  return p;
}

// A row that is too long for one block's registers and would be read several times is several blocks'. Where nothing of
// it is stored, the caches hold a short one until it is read again; not one of 32768 bf16, whose cross entropy took 75
// us so and 63 us in clusters.
void prefer_cluster(const RowFacts& facts, const Shape& shape, CudaReduction& p, const Target& target) {
  if (!has_clusters(target) || p.along != ThreadsAlong::kRow) return;
  if (p.stages > 1 || p.keep != Keep::kNothing) return;
  if (facts.traffic.scans) return;                        // what blocks have cannot be scanned in order
  if (facts.phases(Keep::kRows).kept_bytes == 0) return;  // it is read once
  if (!stores_rows(facts.traffic, shape.lane_loop) && 4 * shape.folded <= kKeptRowBytes) return;
  for (int64_t most : {kThreadsOfClusterBlock, kMostThreadsOfClusterBlock}) {
    for (int64_t cluster = 2; cluster <= kMostBlocksOfCluster; cluster *= 2) {
      const CudaReduction divided = along_row(facts, shape, target, cluster);
      const bool fits = divided.threads > kWarp && divided.threads <= most && divided.threads_y == 1;
      if (!fits || divided.keep != Keep::kRows) continue;
      p = divided;
      const int64_t kept = p.unroll * p.lanes * facts.phases(Keep::kRows).kept_bytes;
      // Few such blocks have room beside each other. Their next row comes while they wait: softmax's derivative took
      // 191 us instead of 308 for rows of 131072 bf16, 199 instead of 299 for 65536; in 2 blocks 213 instead of 189.
      if (kept > kKeptBytesOfWarp && cluster > 2 && narrowest(facts, shape.lane_loop) < 4) add_stages(facts, p, target);
      return;
    }
  }
}

// Whether all that there is is the sums over the rows of one array.
bool sums_one_array(const RowFacts& facts) {
  const auto whole = [](const Access& access) {
    return !access.uses.empty() && access.bytes > 0 && std::count(access.steps.begin(), access.steps.end(), 0) == 0;
  };
  const auto& accesses = facts.traffic.accesses;
  return facts.segment.outputs.size() == 1 && std::count_if(accesses.begin(), accesses.end(), whole) == 1;
}

// Such sums in strips.
bool in_strips(const RowFacts& facts, const Shape& shape, CudaReduction& p, const Target& target) {
  const int64_t bytes = narrowest(facts, shape.lane_loop), columns = facts.traffic.extents[shape.lane_loop];
  if (shape.kept != columns || !sums_one_array(facts)) return false;
  // Results are few: their accesses may be several.
  Traffic read = facts.traffic;
  for (Access& access : read.accesses) {
    if (access.stores) access.bytes = std::min(access.bytes, bytes);
  }
  const int64_t lanes = vector_lanes(read, shape.lane_loop);
  const Strips strips = strips_of(shape.folded, columns, bytes, target);
  if (lanes * bytes != kMaxVectorBytes || strips.threads == 0) return false;
  p.lanes = lanes;
  p.threads = strips.threads;
  p.threads_y = strips.threads_y;
  p.unroll = strips.unroll;
  p.at_once = strips.at_once;
  return true;
}

// Few rows of many columns: threads go along all columns there are, of which each folds its own.
bool in_columns_of_threads(const RowFacts& facts, const Shape& shape, CudaReduction& p) {
  if (has_parts(facts.segment) || shape.across > 1) return false;
  if (shape.folded > kRowsOfColumn || shape.kept / p.lanes < kManyRows) return false;
  CudaReduction own = p;
  own.along = ThreadsAlong::kRows;
  own.threads = kSmallBlock;
  own.unroll = std::min(shape.folded, 2 * kFoldVectors);
  keep_rows(facts, own, shape.folded);
  if (own.keep == Keep::kNothing && facts.phases(Keep::kRows).kept_bytes > 0) return false;  // it would be read again
  p = own;
  return true;
}

// Columns that would be read again, of more rows than wide blocks keep: in strips of lines, of parts of them or at
// least of sectors (two where rows begin anywhere), if possible one for each multiprocessor. Larger blocks, alone on a
// multiprocessor, where smaller ones cannot keep them or keep pairs.
bool in_kept_strips(const RowFacts& facts, const Shape& shape, CudaReduction& p, const Target& target) {
  const Phases phases = facts.phases(Keep::kRows);
  if (has_parts(facts.segment) || facts.traffic.scans || phases.kept_bytes == 0) return false;
  const int64_t bytes = narrowest(facts, shape.lane_loop), columns = facts.traffic.extents[shape.lane_loop];
  const int64_t widest = std::min<int64_t>(kWarp, std::bit_ceil(uint64_t(divide_up(columns, p.lanes))));
  CudaReduction wide = p;
  wide.threads = kWarp;
  wide.threads_y = kBlock / kWarp;
  keep_rows(facts, wide, divide_up(shape.folded, wide.threads_y));
  if (wide.keep == Keep::kRows) return false;
  for (int64_t threads = kept_in_pairs(phases) ? kLongRowBlock : kBlock; threads <= kLongRowBlock; threads *= 2) {
    for (int64_t run = kLine; run >= (p.lanes > 1 ? kSector : 2 * kSector); run /= 2) {
      CudaReduction strips = p;
      strips.threads = std::clamp<int64_t>(run / (p.lanes * bytes), 1, widest);
      strips.threads_y = threads / strips.threads;
      strips.keep = Keep::kNothing;
      keep_rows(facts, strips, divide_up(shape.folded, strips.threads_y),
                {.block_bytes = threads * kKeptBytes, .vectors = kKeptBytes});
      if (strips.keep == Keep::kNothing) continue;
      p = strips;
      const int64_t blocks = shape.kept / columns * divide_up(columns, p.lanes * p.threads);
      if (blocks >= target.multiprocessors) return true;
    }
    if (p.keep == Keep::kRows) return true;
  }
  return false;
}

CudaReduction along_columns(const RowFacts& facts, const Shape& shape, const Target& target) {
  CudaReduction p;
  p.along = ThreadsAlong::kColumns;
  p.lane_loop = static_cast<int>(shape.lane_loop);
  p.lanes = shape.lanes;
  if (in_columns_of_threads(facts, shape, p) || in_kept_strips(facts, shape, p, target)) return p;
  if (in_scanned_columns(facts, shape.folded, shape.kept, p, target)) return p;
  p.threads = kWarp;
  const int64_t columns = facts.traffic.extents[shape.lane_loop];
  while (p.threads / 2 >= columns / p.lanes) p.threads /= 2;
  auto blocks = [&] { return shape.kept / columns * divide_up(columns / p.lanes, p.threads); };
  while (p.lanes > 1 && blocks() < target.multiprocessors) p.lanes /= 2;
  // What the kernel before has left in the caches comes soon: fewer blocks of more rows, in whole lines.
  const int64_t bytes = narrowest(facts, shape.lane_loop);
  const bool in_parts = has_parts(facts.segment);
  const bool in_turn = std::any_of(facts.segment.ops.begin(), facts.segment.ops.end(), [](const ir::Op& op) {
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    return reduce != nullptr && reduce->in_turn;
  });
  const bool once = facts.phases(Keep::kNothing).count == 1 && !in_parts && !facts.traffic.scans;
  const bool few = once && shape.folded * shape.kept * bytes <= kCachedBytes;
  if (once && !few && in_strips(facts, shape, p, target)) return p;
  // Where caches have all that is read, time is arithmetic, and blocks of few columns each are shared out evenly: boxes
  // that overlap, 12000 with 12000, 316 us in 188 blocks, 207 in 375 and 188 in 750 (H200).
  constexpr int64_t kBlocksEach = 4;
  const bool cached = once && bytes_read(facts.traffic) < 1;
  const int64_t enough = few      ? target.multiprocessors / 3
                         : cached ? kBlocksEach * target.multiprocessors
                                  : target.multiprocessors;
  while (p.threads > kFewColumns && blocks() < enough) p.threads /= 2;
  p.threads_y = kBlock / p.threads;
  if (few && shape.folded > kCachedRows * p.threads_y) p.threads_y *= 2;
  while (p.threads_y / 2 >= shape.folded) p.threads_y /= 2;
  const int64_t rows = divide_up(shape.folded, p.threads_y);
  p.unroll = std::min(rows, 2 * kFoldVectors);
  if (in_parts && !facts.traffic.scans && columns * bytes % kMaxVectorBytes == 0 && sums_one_array(facts)) {
    if (!in_turn) p.unroll = std::min(rows, kBytesOfPart / (p.lanes * bytes));
    p.at_once = std::max<int64_t>(1, kThreadsOfParts / (p.threads * p.threads_y));
  }
  keep_rows(facts, p, rows);
  return p;
}

}  // namespace

bool kept_in_pairs(const Phases& phases) {
  const int64_t rows = static_cast<int64_t>(phases.rows.size());
  return rows > 0 && phases.kept_bytes == 4 * rows && phases.column_bytes == 0 &&
         std::all_of(phases.rows.begin(), phases.rows.end(),
                     [&](ir::ValueId id) { return phases.fusion.values[id].dtype == DType::kBF16; });
}

CudaReduction propose_cuda(const RowFacts& facts, const Target& target) {
  if (contains(facts.traffic.runs, true)) return along_runs(facts, target);
  const Shape shape = shape_of(facts.traffic);
  CudaReduction p =
      facts.traffic.folded[shape.lane_loop] ? along_row(facts, shape, target) : along_columns(facts, shape, target);
  prefer_stages(facts, p, target);
  prefer_cluster(facts, shape, p, target);
  p.blocks = blocks_of_stages(facts, p, target);
  return p;
}

}  // namespace jf::plan
