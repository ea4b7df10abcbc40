#include "plan/transpose_cuda.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/integers.h"
#include "base/lists.h"
#include "base/target.h"
#include "plan/strategy_loops.h"
#include "plan/traffic.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::ValueId;
using schedule::Parallel;
using schedule::Scheduler;

// Shorter axes are in the cache anyway.
constexpr int64_t kShortest = 16;
// Shared by the blocks of a multiprocessor, of which some should run at once.
constexpr int64_t kMaxSharedBytes = 48 << 10;
// Rows of 128 bytes, once all banks of shared memory, took 1.05 times as long.
constexpr int64_t kRowBytes = 256, kMostTile = 128;
// Vectors of a thread that are on their way together, where there are fewer tiles than so many for each multiprocessor
// and where there are more.
constexpr int64_t kFewVectors = 2, kVectors = 4, kFewTiles = 8;
// Tiles that are turned in vectors: the largest ones of which each multiprocessor has so many, or small ones. Of all
// vectors that they read, (1 + vector / tile)^2 times as many as there are, some are of no use.
constexpr int64_t kMostTurned = 120, kUsualTurned = 56, kFewestTurned = 40, kTilesEach = 8;
constexpr int64_t kMostThreads = 512;
// The largest have two rows of threads, so that more tiles have room beside each other: 8191 x 5003 bf16 took 46.1 us
// in tiles of 120 with 240 threads and 50.8 with 480. Fewer of them are smaller: 8191 x 1537 took 17.3 us in tiles of
// 104 with 208 threads, 18.6 with 416, and 15.9 in tiles of 72 with 288; 4095 x 1537 9.0 so and 11.9 with 144.
constexpr int64_t kSmallTurned = 72, kRowsOfLargest = 2, kLargestEach = 16;

struct Facts {
  size_t across = 0;  // the loop along which some inputs are contiguous
  std::vector<const Access*> transposed = {};
  int64_t bytes = 0;  // of an element of each of them
};

bool is_transposed(const Access& access, size_t loop) {
  const bool has_tile = !access.uses.empty() || access.slices.size() == 1;
  return has_tile && access.bytes > 0 && std::abs(access.steps[loop]) == 1 && std::abs(access.steps.back()) > 1;
}

Facts transposed_along(const Traffic& traffic, size_t loop) {
  Facts facts{loop};
  for (const Access& access : traffic.accesses) {
    if (!is_transposed(access, loop)) continue;
    facts.transposed.push_back(&access);
    facts.bytes += access.bytes;
  }
  return facts;
}

// The loop other than the last along which most bytes are contiguous.
std::optional<Facts> find_transposed(const Traffic& traffic) {
  if (traffic.extents.size() < 2 || traffic.extents.back() < kShortest) return std::nullopt;
  std::optional<Facts> best;
  for (size_t loop = 0; loop + 1 < traffic.extents.size(); ++loop) {
    if (traffic.extents[loop] < kShortest) continue;
    Facts facts = transposed_along(traffic, loop);
    if (facts.bytes > (best ? best->bytes : 0)) best = std::move(facts);
  }
  return best;
}

// Vectors trade places along a row, so that those of a column lie in different banks. One element at a time, rows are
// a word of a bank further apart.
constexpr int64_t kBankBytes = 4;
bool in_place(const CudaTranspose& p) {
  return p.lanes > 1 && p.tile % p.lanes == 0 && is_power_of_two(p.tile / p.lanes);
}
int64_t pad(const CudaTranspose& p, int64_t bytes) { return in_place(p) ? 0 : std::max(p.lanes, kBankBytes / bytes); }
int64_t shared_bytes(const Facts& facts, const CudaTranspose& p) {
  int64_t result = 0;
  for (const Access* access : facts.transposed) result += access->bytes * p.tile * (p.tile + pad(p, access->bytes));
  return result;
}

int64_t tiles_of(const Traffic& traffic, const Facts& facts, int64_t tile) {
  int64_t tiles = divide_up(traffic.extents[facts.across], tile) * divide_up(traffic.extents.back(), tile);
  for (size_t loop = 0; loop + 1 < traffic.extents.size(); ++loop) {
    if (loop != facts.across) tiles *= traffic.extents[loop];
  }
  return tiles;
}

// Rows that lie almost so many bytes apart, or a multiple of them.
constexpr int64_t kFarApart = 16 << 10, kAlmost = 64;
bool far_apart(const Traffic& traffic, const Facts& facts) {
  return std::any_of(facts.transposed.begin(), facts.transposed.end(), [&](const Access* access) {
    const int64_t pitch = std::abs(access->steps[traffic.extents.size() - 1]) * access->bytes;
    return pitch + kAlmost >= kFarApart && (pitch + kAlmost) % kFarApart <= 2 * kAlmost;
  });
}

// Rows that begin anywhere: tiles that lower/turned_tiles.h can take in vectors. Their columns begin up to a vector
// before the tile, and the last tile must have them still.
void turn_in_vectors(const Traffic& traffic, const Facts& facts, CudaTranspose& p, const Target& target) {
  int64_t narrowest = kMaxVectorBytes, widest = 1;
  for (const Access& access : traffic.accesses) {
    if (access.bytes == 0) continue;
    narrowest = std::min(narrowest, access.bytes);
    widest = std::max(widest, access.bytes);
  }
  if (narrowest < 2 || widest > 4) return;
  const int64_t lanes = kMaxVectorBytes / narrowest, rows = traffic.extents.back();
  bool turned = false;
  for (int64_t tile = std::min(kMostTurned, kRowBytes / widest); tile >= kFewestTurned;
       tile = tile > kSmallTurned ? kSmallTurned : tile - lanes) {
    int64_t bytes = 0;
    for (const Access* access : facts.transposed) {
      bytes += access->bytes * (tile + lanes + kMaxVectorBytes / access->bytes) * (tile + 2 * lanes);
    }
    // Whole warps that take whole rows of the tile, equally many each.
    const int64_t fewest = std::lcm(tile, kWarp);
    int64_t threads = kMostThreads / fewest * fewest;
    while (threads > 0 && tile * tile % threads != 0) threads -= fewest;
    if (tile > kSmallTurned) threads = kRowsOfLargest * tile;
    if (bytes > kMaxSharedBytes || threads == 0 || round_up(rows, tile) - (lanes - 1) < rows) continue;
    if (turned && tile < kUsualTurned) return;
    turned = true;
    p.tile = tile;
    p.threads = threads;
    const int64_t each = tile > kSmallTurned ? kLargestEach : kTilesEach;
    if (tiles_of(traffic, facts, tile) >= each * target.multiprocessors) return;
  }
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

// A slice or a padding of an input is a copy by itself.
Fusion with_copies(const Fusion& segment, const std::vector<const Access*>& transposed, std::vector<ValueId>& copies) {
  Fusion fusion = segment;
  std::map<size_t, std::vector<Op>> before;
  for (const Access* access : transposed) {
    if (access->uses.empty()) {
      copies.push_back(segment.ops[access->slices.front()].output);
      continue;
    }
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

std::optional<CudaTranspose> propose_transpose(const Fusion& segment, const Target& target) {
  if (target.platform != Platform::kCuda) return std::nullopt;
  const Traffic facts = traffic(segment, segment.outputs.front());
  const std::optional<Facts> found = find_transposed(facts);
  if (!found) return std::nullopt;
  int64_t widest = 1;
  for (const Access* access : found->transposed) widest = std::max(widest, access->bytes);
  CudaTranspose p;
  p.loop = static_cast<int>(found->across);
  p.lanes = std::min(vector_lanes(facts, facts.extents.size() - 1), vector_lanes(facts, found->across));
  p.tile = std::min(kMostTile, kRowBytes / widest);
  // Smaller tiles that fill both axes: 2880 x 65536 bf16 took 208 us in tiles of 64 and 219 in tiles of 128.
  const auto fills = [&](int64_t tile) {
    return facts.extents[found->across] % tile == 0 && facts.extents.back() % tile == 0;
  };
  if (!fills(p.tile) && p.tile / 2 >= kShortest && fills(p.tile / 2)) p.tile /= 2;
  // Few tiles are smaller, so that multiprocessors have equally many: microseconds in tiles of 64 and of 128, bf16, 3.0
  // and 3.7 for 2048 x 768, 5.4 and 6.0 for 2048 x 2048, 18.0 and 18.6 for 2048 x 8192, 14.1 and 14.7 for 16384 x 768.
  const bool few = p.lanes > 1 && tiles_of(facts, *found, p.tile) < kFewTiles * target.multiprocessors;
  if (few && p.tile / 2 >= kShortest && p.tile == kRowBytes / widest) p.tile /= 2;
  p.threads = std::clamp(p.tile * p.tile / (p.lanes * (few ? kFewVectors : kVectors)), 2 * kWarp, 16 * kWarp);
  const bool forwards = std::all_of(found->transposed.begin(), found->transposed.end(), [&](const Access* access) {
    return access->steps[found->across] == 1 &&
           std::count(access->edges.begin(), access->edges.end(), 0) == std::ssize(access->edges);
  });
  if (p.lanes == 1 && forwards && found->bytes == 2 && far_apart(facts, *found)) {
    // One element at a time in small tiles: 4096 rows of 8191 bf16 58 us, 157 in vectors of tiles of 120, 8192 rows 131
    // and 306 (H200); what vectors wait for is not known.
    p.tile = kFewestTurned;
    p.threads = kRowsOfLargest * kMostTurned;
  } else if (p.lanes == 1 && forwards) {
    turn_in_vectors(facts, *found, p, target);
  }
  if (shared_bytes(*found, p) > kMaxSharedBytes) return std::nullopt;
  return p;
}

std::string print(const CudaTranspose& p) {
  return cat("cuda transpose loop=", p.loop, " tile=", p.tile, " lanes=", p.lanes, " threads=", p.threads);
}

TransposeKernel transpose_kernel(const Fusion& segment, const CudaTranspose& p) {
  const Traffic facts = traffic(segment, segment.outputs.front());
  const int across = p.loop, loops = static_cast<int>(facts.extents.size());
  JF_REQUIRE(across >= 0 && across + 1 < loops, "[transpose] expected a loop in [0, ", loops - 1, "), got ", across);
  const Facts found = transposed_along(facts, static_cast<size_t>(across));
  JF_REQUIRE(!found.transposed.empty(), "[transpose] no input is contiguous along loop ", across,
             " and not along the last one; choose another loop");
  JF_REQUIRE(shared_bytes(found, p) <= kMaxSharedBytes, "[transpose] tiles of ", p.tile, " x ", p.tile, " take ",
             shared_bytes(found, p), " bytes of shared memory; at most ", kMaxSharedBytes, ": a smaller tile");

  TransposeKernel result;
  std::vector<ValueId> copies;
  result.fusion = with_copies(segment, found.transposed, copies);
  const ValueId reference = result.fusion.outputs.front();
  Scheduler scheduler(result.fusion);
  // [.., across, .., last] -> [tile, across in the tile, last in the tile]
  collapse(scheduler, reference, facts.collapse);
  scheduler.split(reference, loops - 1, p.tile);
  scheduler.split(reference, across, p.tile);
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
    if (in_place(p)) {
      // [tile, vector of rows, row, vector, lane]
      scheduler.split(copy, 2, p.lanes);
      scheduler.split(copy, 1, p.lanes);
      scheduler.swizzle(copy, 1, 3);
      scheduler.set_allocation(copy, 1, 0);
      scheduler.merge(copy, 1);
      scheduler.merge(copy, 1);
    } else {
      scheduler.set_allocation(copy, 1, pad(p, size_of(result.fusion.values[copy].dtype)));
    }
  }
  // Each value's tile over the threads, along the axis that it is contiguous along.
  std::set<ValueId> computed(result.fusion.outputs.begin(), result.fusion.outputs.end());
  for (const Op& op : result.fusion.ops) computed.insert(op.output);
  for (ValueId id : computed) {
    // [tile, vectors, lane]
    const bool copied = contains(copies, id);
    if (!copied || !in_place(p)) {
      scheduler.merge(id, 1);
      if (p.lanes > 1) scheduler.split(id, 1, p.lanes);
    }
    scheduler.split(id, 1, p.threads);
    scheduler.parallelize(id, 0, Parallel::kBlock);
    scheduler.parallelize(id, 1, Parallel::kUnroll);
    scheduler.parallelize(id, 2, Parallel::kThread);
    if (p.lanes > 1) scheduler.parallelize(id, 3, Parallel::kVector);
  }
  scheduler.inline_most();
  result.schedule = scheduler.schedule();
  return result;
}

}  // namespace jf::plan
