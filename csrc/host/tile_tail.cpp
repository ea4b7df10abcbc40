#include "host/tile_tail.h"

#include <algorithm>
#include <utility>

#include "grouped/cpu/grouped_cpu.h"
#include "lower/lower.h"
#include "schedule/schedule.h"

namespace jf::host {
namespace {

constexpr int64_t kMostLanes = 16;

int64_t widest(const ir::Fusion& fusion) {
  int64_t bytes = 4;  // sixteen-bit floats are computed in f32
  for (const ir::Value& value : fusion.values) bytes = std::max<int64_t>(bytes, size_of(value.dtype));
  return bytes;
}

}  // namespace

TileTail tile_tail(const ir::Fusion& tail, ir::ValueId product, std::vector<int64_t> first, const Target& target) {
  const ir::ValueId result = tail.outputs.front();
  TileTail made;
  made.chunk = grouped::kTailColumns;
  made.n = tail.values[result].axes.back().extent;
  made.first = std::move(first);
  made.product = static_cast<int>(std::find(tail.inputs.begin(), tail.inputs.end(), product) - tail.inputs.begin());
  const int64_t lanes = std::clamp<int64_t>(target.vector_bytes / widest(tail), 2, kMostLanes);

  schedule::Scheduler scheduler(tail);
  scheduler.split(result, 1, made.chunk);
  scheduler.split(result, 2, lanes);
  scheduler.merge(result, 0);
  scheduler.parallelize(result, 0, schedule::Parallel::kTask);
  scheduler.parallelize(result, -1, schedule::Parallel::kVector);
  scheduler.transform_like(result);
  scheduler.parallelize_like(result);
  scheduler.inline_most();
  made.kernel = lower::lower(tail, scheduler.schedule(), target, lower::Loops::kNest);
  return made;
}

}  // namespace jf::host
