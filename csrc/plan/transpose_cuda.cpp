#include "plan/transpose_cuda.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "plan/strategy_loops.h"
#include "plan/traffic.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::ValueId;
using schedule::Parallel;
using schedule::Scheduler;

// A row of a tile is two or four memory transactions, and each thread has 16 elements on their way.
constexpr int64_t kTile = 64, kThreads = 256;
// Shorter axes are in the cache anyway.
constexpr int64_t kShortest = 16;
// Shared by the blocks of a multiprocessor, of which some should run at once.
constexpr int64_t kMaxSharedBytes = 48 << 10;
// Threads write and read words of this size.
constexpr int64_t kWord = 4;

struct Facts {
  size_t across;                  // the loop along which some inputs are contiguous
  std::vector<const Access*> transposed;
};

bool is_transposed(const Access& access, size_t loop) {
  return !access.uses.empty() && access.bytes > 0 && access.steps[loop] == 1 && access.steps.back() > 1;
}

// The loop other than the last along which most bytes are contiguous.
std::optional<Facts> find_transposed(const Traffic& traffic) {
  if (traffic.extents.size() < 2 || traffic.extents.back() < kShortest) return std::nullopt;
  std::optional<Facts> best;
  int64_t most = 0;
  for (size_t loop = 0; loop + 1 < traffic.extents.size(); ++loop) {
    if (traffic.extents[loop] < kShortest) continue;
    Facts facts{loop, {}};
    int64_t bytes = 0;
    for (const Access& access : traffic.accesses) {
      if (!is_transposed(access, loop)) continue;
      facts.transposed.push_back(&access);
      bytes += access.bytes;
    }
    if (bytes <= most) continue;
    most = bytes;
    best = std::move(facts);
  }
  return best;
}

std::string unused_name(const Fusion& fusion, const std::string& like) {
  std::set<std::string> names = {fusion.name};
  for (const ir::Value& value : fusion.values) names.insert(value.name);
  std::string name = like + "_tile";
  while (names.count(name) > 0) name += "_";
  return name;
}

// Adds a copy of an input and makes some of its uses read that. Ops move by one, but only those after the first use.
ValueId add_copy(Fusion& fusion, ValueId input) {
  ir::Value value = fusion.values[input];
  value.name = unused_name(fusion, value.name);
  fusion.values.push_back(std::move(value));
  return static_cast<ValueId>(fusion.values.size()) - 1;
}

Fusion with_copies(const Fusion& segment, const std::vector<const Access*>& transposed, std::vector<ValueId>& copies) {
  Fusion fusion = segment;
  std::map<size_t, std::vector<Op>> before;
  for (const Access* access : transposed) {
    const auto [first, operand] = *std::min_element(access->uses.begin(), access->uses.end());
    const ValueId input = segment.ops[first].inputs[operand], copy = add_copy(fusion, input);
    for (const auto& [op, used] : access->uses) fusion.ops[op].inputs[used] = copy;
    before[first].push_back({ir::OpKind::kCopy, {input}, copy, {}, ""});
    copies.push_back(copy);
  }
  std::vector<Op> ops;
  for (size_t i = 0; i < fusion.ops.size(); ++i) {
    for (Op& op : before[i]) ops.push_back(std::move(op));
    ops.push_back(std::move(fusion.ops[i]));
  }
  fusion.ops = std::move(ops);
  return fusion;
}

}  // namespace

std::optional<Transpose> transpose_cuda(const Fusion& segment, const Target& target) {
  if (target.platform != Platform::kCuda) return std::nullopt;
  const Traffic facts = traffic(segment, segment.outputs.front());
  std::optional<Facts> found = find_transposed(facts);
  if (!found) return std::nullopt;
  int64_t narrowest = kWord, bytes = 0;
  for (const Access* access : found->transposed) {
    narrowest = std::min(narrowest, access->bytes);
    bytes += access->bytes;
  }
  const size_t last = facts.extents.size() - 1;
  const int64_t lanes = std::min({kWord / narrowest, vector_lanes(facts, last), vector_lanes(facts, found->across)});
  if (bytes * kTile * (kTile + lanes) > kMaxSharedBytes) return std::nullopt;

  Transpose result;
  std::vector<ValueId> copies;
  result.fusion = with_copies(segment, found->transposed, copies);
  const ValueId reference = result.fusion.outputs.front();
  Scheduler scheduler(result.fusion);
  // [.., across, .., last] -> [tile, across in the tile, last in the tile]
  collapse(scheduler, reference, facts.collapse);
  const int across = static_cast<int>(found->across), loops = static_cast<int>(last) + 1;
  scheduler.split(reference, loops - 1, kTile);
  scheduler.split(reference, across, kTile);
  std::vector<int> order;
  for (int axis = 0; axis < loops + 2; ++axis) {
    if (axis != across + 1 && axis != loops + 1) order.push_back(axis);
  }
  order.insert(order.end(), {across + 1, loops + 1});
  scheduler.reorder(reference, order);
  for (int i = 1; i < loops; ++i) scheduler.merge(reference, 0);
  scheduler.transform_like(reference);
  for (ValueId copy : copies) {
    scheduler.reorder(copy, {0, 2, 1});
    scheduler.set_memory(copy, schedule::Memory::kShared);
    scheduler.set_allocation(copy, 1, lanes);
  }
  // Each value's tile over the threads, along the axis that it is contiguous along.
  std::set<ValueId> computed(result.fusion.outputs.begin(), result.fusion.outputs.end());
  for (const Op& op : result.fusion.ops) computed.insert(op.output);
  for (ValueId id : computed) {
    scheduler.merge(id, 1);
    if (lanes > 1) scheduler.split(id, 1, lanes);
    scheduler.split(id, 1, kThreads);
    scheduler.parallelize(id, 0, Parallel::kBlock);
    scheduler.parallelize(id, 1, Parallel::kUnroll);
    scheduler.parallelize(id, 2, Parallel::kThread);
    if (lanes > 1) scheduler.parallelize(id, 3, Parallel::kVector);
  }
  scheduler.inline_most();
  result.schedule = scheduler.schedule();
  result.parameters = cat("cuda transpose loop=", across, " tile=", kTile, " lanes=", lanes, " threads=", kThreads,
                          " shared=", copies.size());
  return result;
}

}  // namespace jf::plan
