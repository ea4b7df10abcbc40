// Reductions whose rows come by bulk copies, ahead of the row that the block works on, and may go by them.
#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "base/target.h"
#include "plan/even_rows.h"
#include "plan/reduction_platforms.h"
#include "plan/strategy_loops.h"

namespace jf::plan {
namespace {

using ir::ValueId;
using schedule::Parallel;
using schedule::Scheduler;

// Threads of a multiprocessor, where each has 64 registers, and stages that hide the latency of memory.
constexpr int64_t kStagedThreads = 1024, kUsualStages = 3;

// Sums across rows wait for their row's folds with few threads, whose registers hold the sums. 16384 rows of 8192: bf16
// layer norm backward took 234 us in stages and 380 without, f32 422 and 496, but f32 rms norm backward, with a fold
// less, the same; elements of a thread, vectors and threads are the fastest of that run. Of 8191 rows of 5003, which
// no vectors divide, it took 129 and 176 us in bf16, 146 and 205 in f32, and rms norm backward 142 and 165 in f32.
constexpr int64_t kStagedElements = 32, kStagedLanes = 4, kMostStagedThreads = 512;
constexpr int kShortWait = 2;
constexpr int64_t kShortRows = 8 << 10;
// Bytes that a thread keeps for each of its 16 or 24 elements: more take more than 128 registers, or more than there
// are.
constexpr int64_t kStagedWideBytes = 4, kMostWideBytes = 20, kMostBytesOfFewThreads = 36;
// Bytes of several rows on their way with two stages, where three are slower: layer norm backward, bf16, took 51 and 54
// us for rows of 4096, 50 and 53 for 2048; but with fewer bytes 82 and 81 for 768, and where a multiprocessor has one
// row 200 and 191 for 8192. With one fold of the row two are faster in any case: 191 and 200 us for 8192 (rms norm).
constexpr int64_t kBytesAhead = 28 << 10;
// Shared memory beside the stages: scratch of folds, barriers, rounding.
constexpr int64_t kStagedSpareBytes = 8 << 10;
// Likewise where rows are side by side, whose sums across are folded there, too.
constexpr int64_t kSpareBytesOfSums = 20 << 10;
// Of those rows that a block has side by side each thread has at least so many, one after the other.
constexpr int64_t kRowsInTurn = 2;

// The rows that bulk copies can bring.
struct StagedRows {
  int64_t elements = 1, bytes = 0, narrowest = 16, widest = 1;
  int phases = 0;
};
StagedRows rows_of(const RowFacts& facts, Keep keep) {
  const Phases phases = split_phases(facts.segment, facts.traffic, keep, {.rows = true});
  StagedRows rows;
  rows.phases = phases.count;
  for (size_t loop = 0; loop < facts.traffic.extents.size(); ++loop) {
    if (facts.traffic.folded[loop]) rows.elements *= facts.traffic.extents[loop];
  }
  for (ValueId id : phases.rows) {
    const int64_t size = size_of(phases.fusion.values[id].dtype);
    rows.bytes += size * rows.elements;
    rows.narrowest = std::min(rows.narrowest, size);
    rows.widest = std::max(rows.widest, size);
  }
  return rows;
}

// StagedRows that a block has side by side: as many as make busy threads of the blocks that a multiprocessor has. 4095
// rows of 1537 bf16 in 128 parts, layer norm backward: 50 us with one row of 64 threads in each block, 33 with two, 23
// with four, 21 with eight; rms 39, 25, 19 and 17.
int64_t rows_side_by_side(const RowFacts& facts, const CudaReduction& p, int64_t row_bytes, const Target& target) {
  int64_t parts = 1, rows = 1;
  for (size_t loop = 0; loop < facts.traffic.extents.size(); ++loop) {
    if (facts.traffic.across[loop]) rows *= facts.traffic.extents[loop];
    if (!facts.traffic.across[loop] && !facts.traffic.folded[loop]) parts *= facts.traffic.extents[loop];
  }
  const int64_t blocks = divide_up(parts, target.multiprocessors),
                memory = std::min(target.max_shared_bytes / blocks - kStagedSpareBytes,
                                  target.max_shared_bytes - kSpareBytesOfSums);
  const int64_t most =
      std::min({kMostStagedThreads / (blocks * p.threads), memory / (p.stages * row_bytes), rows / kRowsInTurn});
  return std::max<int64_t>(1, most);
}

// Elements after a row whose copies begin anywhere, so that the next one can begin as far into 16 bytes.
int64_t pad_of_row(int64_t elements, DType dtype) {
  const int64_t vector = kBulkBytes / size_of(dtype);
  return elements % vector == 0 ? 0 : round_up(elements + vector - 1, vector) - elements;
}

// The loops of the reference become [blocks, rows of a block one after the other, rows side by side, row], those that
// there are. Returns the position of the row.
int rows_in_turn(Scheduler& scheduler, ValueId reference, const Traffic& traffic, const CudaReduction& p) {
  collapse(scheduler, reference, traffic.collapse);
  enum Group { kKept, kAcross, kFolded, kGroups };
  std::vector<int> order;
  int count[kGroups] = {};
  for (int group = 0; group < kGroups; ++group) {
    for (int loop = 0; loop < loop_rank(scheduler, reference); ++loop) {
      if ((traffic.folded[loop] ? kFolded : traffic.across[loop] ? kAcross : kKept) != group) continue;
      order.push_back(loop);
      ++count[group];
    }
  }
  scheduler.reorder(reference, order);
  int position = 0;
  for (int n : count) {
    for (int i = 1; i < n; ++i) scheduler.merge(reference, position);
    position += n > 0;
  }
  const bool kept = count[kKept] > 0, across = count[kAcross] > 0;
  JF_REQUIRE(kept || across, "[reduction] stages: there is one row, so none to load ahead; expected stages=1");
  const int row = kept + across;
  if (p.threads_y > 1) scheduler.split(reference, row - 1, p.threads_y);
  const int side_by_side = p.threads_y > 1;
  if (across) return row + side_by_side;
  // Blocks that run at once work on neighbouring rows.
  scheduler.split(reference, 0, p.blocks);
  std::vector<int> blocks_first = {1, 0};
  for (int axis = 2; axis < loop_rank(scheduler, reference); ++axis) blocks_first.push_back(axis);
  scheduler.reorder(reference, blocks_first);
  return row + 1 + side_by_side;
}

}  // namespace

int64_t blocks_of_stages(const RowFacts& facts, const CudaReduction& p, const Target& target) {
  if (p.along != ThreadsAlong::kRow) return 1;
  const int64_t by_threads = kStagedThreads / (p.threads * p.threads_y);
  const int64_t row_bytes = rows_of(facts, p.keep).bytes / p.cluster * p.threads_y;
  const int64_t by_memory = target.max_shared_bytes / std::max<int64_t>(1, kUsualStages * row_bytes);
  return clusters_at_once(p.cluster, target.multiprocessors) * std::max<int64_t>(1, std::min(by_threads, by_memory));
}

namespace {

// How the rows of sums across rows are divided.
struct Runs {
  int64_t count = 1, rows = 1;
  bool in_turn = false;
};
Runs runs_of(const RowFacts& facts) {
  Runs runs;
  for (size_t loop = 0; loop < facts.traffic.extents.size(); ++loop) {
    if (facts.traffic.folded[loop]) continue;
    (facts.traffic.across[loop] ? runs.rows : runs.count) *= facts.traffic.extents[loop];
  }
  for (const ir::Op& op : facts.segment.ops) {
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    runs.in_turn |= reduce != nullptr && reduce->in_turn;
  }
  return runs;
}

// What a thread keeps of each of its elements, if f32 is what it keeps.
int64_t wide_bytes(const RowFacts& facts) {
  const KeepMore wide = {.rows = true, .columns = true, .converted = true};
  const Phases phases = split_phases(facts.segment, facts.traffic, Keep::kRows, wide);
  return phases.kept_bytes + phases.column_bytes;
}
// All rows of a run at once, or some in stages, where registers and stages have room.
bool have_room(const RowsOfWarps& warps, int64_t row_bytes, const RowFacts& facts, const Target& target) {
  const int64_t bytes = wide_bytes(facts);
  if (warps.in_turn) return bytes <= kMostWideBytes;
  const int64_t stages = kUsualStages * warps.side_by_side * row_bytes;
  return bytes <= kMostBytesOfFewThreads && stages + kSpareBytesOfSums <= target.max_shared_bytes;
}
void side_by_side(const RowsOfWarps& warps, int64_t row, CudaReduction& p) {
  p.lanes = warps.in_turn ? kStagedLanes : 2 * kStagedLanes;
  p.threads = kWarp;
  p.threads_y = warps.side_by_side;
  p.stages = warps.in_turn ? 1 : kUsualStages;
  p.unroll = row / (p.lanes * kWarp);
  p.keep = Keep::kRows;
  p.keep_columns = p.keep_wide = true;
}

}  // namespace

void add_stages(const RowFacts& facts, CudaReduction& p, const Target& target) {
  if (std::count(facts.traffic.folded.begin(), facts.traffic.folded.end(), true) != 1 || facts.traffic.scans) return;
  const StagedRows rows = rows_of(facts, p.keep);
  const int64_t part = rows.elements / p.cluster;
  const bool even = rows.elements % (p.cluster * p.lanes) == 0 && part * rows.narrowest % kBulkBytes == 0;
  if (rows.bytes == 0 || !even || 2 * rows.bytes / p.cluster + kStagedSpareBytes > target.max_shared_bytes) return;
  p.stages = 2;
}

void prefer_stages(const RowFacts& facts, CudaReduction& p, const Target& target) {
  const std::vector<bool>& across = facts.traffic.across;
  const bool sums_across = contains(across, true);
  if (!has_clusters(target) || p.along != ThreadsAlong::kRow || !sums_across) return;
  // StagedRows in one piece.
  if (std::count(facts.traffic.folded.begin(), facts.traffic.folded.end(), true) != 1) return;
  StagedRows rows = rows_of(facts, Keep::kRows);
  int64_t cluster = 1;
  const auto fits = [&] { return 2 * rows.bytes + kStagedSpareBytes <= target.max_shared_bytes; };
  // Parts of rows that are too long, each of one block, where vectors divide them.
  const int64_t blocks = std::max<int64_t>(1, blocks_of_row(rows.elements, rows.widest, has_clusters(target)));
  while ((cluster < blocks || !fits()) && !facts.traffic.scans && cluster < kMostBlocksOfCluster &&
         rows.elements * rows.narrowest % (2 * kBulkBytes) == 0) {
    cluster *= 2;
    rows.elements /= 2;
    rows.bytes /= 2;
  }
  const size_t row_loop =
      std::find(facts.traffic.folded.begin(), facts.traffic.folded.end(), true) - facts.traffic.folded.begin();
  int64_t lanes = std::gcd(rows.elements, kStagedLanes);
  const int64_t each = kStagedElements / kStagedLanes, fewest = divide_up(rows.elements, kStagedElements);
  // Equally many warps for each of the four parts of a multiprocessor: 2880 bf16 in 96 threads took 1.1 times as long.
  const int64_t threads = round_up(fewest, fewest > 2 * kWarp ? 4 * kWarp : kWarp);
  // StagedRows of a block that begin alike in memory: its lanes move, which takes a vector more.
  const int64_t taken = std::min<int64_t>(threads, target.max_threads_per_block);
  if (lanes < kStagedLanes && cluster == 1 && rows_begin_alike(facts.traffic, row_loop, kStagedLanes) &&
      divide_up(rows.elements, kStagedLanes) % taken != 0) {
    lanes = kStagedLanes;
  }
  const bool moves = lanes > std::gcd(rows.elements, kStagedLanes);
  const int64_t even = cluster == 1 ? threads_of_even_row(rows.elements, rows.narrowest) : 0;
  const bool waits = rows.narrowest < 4 || lanes < kStagedLanes || moves || even > 0 || cluster > 1 ||
                     (rows.phases > kShortWait && rows.bytes > kShortRows);
  if (rows.bytes == 0 || !fits() || !waits) return;
  // With few elements of a thread all f32 values stay in its registers, and the threads of a row meet only in its
  // folds. Microseconds of layer norm backward, bf16, with and without: 54 and 63 for 8192 rows of 4096, 206 and 216
  // for 16384 of 8192, 77 and 82 for 32768 of 1536, 82 and 88 for 65536 of 768.
  if (even > 0 && !facts.traffic.scans) {
    const Runs runs = runs_of(facts);
    const RowsOfWarps warps = rows_of_warps(runs.count * runs.rows, rows.elements, rows.narrowest);
    if (warps.runs == runs.count && warps.in_turn == runs.in_turn && have_room(warps, rows.bytes, facts, target)) {
      return side_by_side(warps, rows.elements, p);
    }
    p.lanes = kStagedLanes;
    p.threads = even;
    p.threads_y = 1;
    p.unroll = rows.elements / (even * kStagedLanes);
    p.keep = Keep::kRows;
    const int64_t at_once = blocks_of_even_rows(even);
    // Where fewer run than have room, more of their rows are on their way.
    const int64_t running = std::min(at_once, divide_up(runs.count, target.multiprocessors));
    const bool ahead =
        (running == at_once && rows.phases <= kShortWait) || (at_once > 1 && rows.bytes * running >= kBytesAhead);
    p.stages = ahead || kUsualStages * rows.bytes + kStagedSpareBytes > target.max_shared_bytes ? 2 : kUsualStages;
    p.keep_columns = true;
    if (rows.narrowest >= kStagedWideBytes) return;
    p.keep_wide = wide_bytes(facts) <= kMostWideBytes;
    return;
  }
  if (threads < 2 * kWarp && !moves) return;
  p.cluster = cluster;
  p.lanes = lanes;
  p.threads = taken;
  p.threads_y = 1;
  p.unroll = std::max(each, divide_up(rows.elements, p.lanes * p.threads));
  p.keep = Keep::kRows;
  // StagedRows of 5003 f32, 264 runs: layer norm backward 127 us with two stages and 141 with three, rms 128 and 136.
  p.stages = !moves && kUsualStages * rows.bytes <= target.max_shared_bytes / 2 ? kUsualStages : 2;
  // Threads that have all the registers there are read columns once: 4096 rows of 16384 bf16 took 105 us and 116, 1024
  // of 131072 in clusters of 8 blocks 231 and 309.
  p.keep_columns = !moves && p.threads == kMostStagedThreads;
  if (cluster == 1) p.threads_y = rows_side_by_side(facts, p, rows.bytes, target);
}

std::vector<StoredRows> store_rows_in_bulk(Phases& phases) {
  ir::Fusion& fusion = phases.fusion;
  std::vector<StoredRows> stored;
  if (phases.rows.empty()) return stored;
  std::set<std::string> names = {fusion.name};
  for (const ir::Value& value : fusion.values) names.insert(value.name);
  const std::vector<int64_t> shape = ir::shape(fusion.values[phases.rows.front()]);
  const auto is_read = [&](ValueId id) {
    return std::any_of(fusion.ops.begin(), fusion.ops.end(), [&](const ir::Op& op) { return contains(op.inputs, id); });
  };
  std::vector<ir::Op> copies;
  for (ir::Op& op : fusion.ops) {
    const ValueId id = op.output;
    const bool output = contains(fusion.outputs, id);
    const bool plain =
        ir::info(op.kind).op_class == ir::OpClass::kPointwise && !is_read(id) && ir::shape(fusion.values[id]) == shape;
    if (!output || !plain) continue;
    ir::Value value = fusion.values[id];
    value.name += "_row";
    while (!names.insert(value.name).second) value.name += "_";
    const ValueId from = static_cast<ValueId>(fusion.values.size());
    fusion.values.push_back(std::move(value));
    op.output = from;
    copies.push_back({ir::OpKind::kCopy, {from}, id, {}, ""});
    stored.push_back({from, id});
  }
  for (ir::Op& op : copies) fusion.ops.push_back(std::move(op));
  return stored;
}

void schedule_stages(Scheduler& scheduler, const Phases& phases, const std::vector<StoredRows>& stored,
                     ValueId reference, const Traffic& traffic, const CudaReduction& p) {
  const ir::Fusion& fusion = phases.fusion;
  JF_REQUIRE(!phases.rows.empty(), "[reduction] stages: ", fusion.name,
             " reads no input that has every element of its rows in their order; expected stages=1");
  std::vector<ValueId> rows = phases.rows;
  for (const auto& [from, output] : stored) rows.push_back(output);
  int row = rows_in_turn(scheduler, reference, traffic, p);
  const bool blocks = row > 1 + (p.threads_y > 1);
  if (p.cluster > 1) scheduler.split(reference, row++, p.cluster, false);
  scheduler.transform_like(reference, rows);
  // StagedRows side by side are neighbours unless parts have theirs in turn: then each is a copy of its own.
  const bool apart = std::any_of(fusion.ops.begin(), fusion.ops.end(), [](const ir::Op& op) {
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    return reduce != nullptr && reduce->in_turn;
  });
  // Where threads write rows that are stored in bulk, they lie like those, whatever loops the threads have.
  for (const auto& [from, output] : stored) {
    scheduler.transform_like(reference, {from});
    scheduler.set_memory(from, schedule::Memory::kShared);
    scheduler.set_allocation(from, row - (p.threads_y > 1), 0);
  }
  for (ValueId id : rows) {
    if (blocks) scheduler.parallelize(id, 0, Parallel::kBlock);
    scheduler.parallelize(id, row, Parallel::kBulk);
    if (p.cluster > 1) scheduler.parallelize(id, row - 1, Parallel::kCluster);
    if (p.threads_y > 1 && !apart) scheduler.parallelize(id, row - 1, Parallel::kBulk);
  }
  for (ValueId id : phases.rows) {
    scheduler.set_memory(id, schedule::Memory::kShared);
    const bool padded = apart && p.threads_y > 1;
    const int64_t pad = padded ? pad_of_row(loop_extent(scheduler, id, row), fusion.values[id].dtype) : 0;
    if (pad > 0) scheduler.set_allocation(id, row - 1, pad);
    scheduler.circular_buffer(id, static_cast<int>(p.stages), static_cast<int>(p.stages) - 1);
  }
  // [.., vectors, vectors of a thread side by side, thread, lanes]
  if (p.lanes > 1) {
    scheduler.split(reference, row, p.lanes);
    scheduler.parallelize(reference, row + 1, Parallel::kVector);
  }
  scheduler.split(reference, row, p.threads);
  scheduler.parallelize(reference, row + 1, Parallel::kThread);
  if (loop_extent(scheduler, reference, row) <= p.unroll) {
    scheduler.parallelize(reference, row, Parallel::kUnroll);
  } else if (p.unroll > 1) {
    scheduler.split(reference, row, p.unroll);
    scheduler.parallelize(reference, row + 1, Parallel::kUnroll);
  }
  if (p.threads_y > 1) scheduler.parallelize(reference, row - 1, Parallel::kThreadY);
  if (p.cluster > 1) scheduler.parallelize(reference, row - 1, Parallel::kCluster);
  if (blocks) scheduler.parallelize(reference, 0, Parallel::kBlock);

  std::set<ValueId> others(fusion.outputs.begin(), fusion.outputs.end());
  for (const ir::Op& op : fusion.ops) others.insert(op.output);
  for (ValueId id : rows) others.erase(id);
  const std::vector<ValueId> selected(others.begin(), others.end());
  scheduler.transform_like(reference, selected);
  scheduler.parallelize_like(reference, selected);
}

}  // namespace jf::plan
