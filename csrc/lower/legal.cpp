#include "lower/legal.h"

#include "base/error.h"
#include "graph/groups.h"
#include "graph/index.h"
#include "lower/nest.h"
#include "schedule/axes.h"

namespace jf::lower {
namespace {

using ir::Fusion;
using ir::Op;
using ir::ValueId;
using schedule::Domain;
using schedule::Parallel;
using schedule::Schedule;

void check_parallel_types(const std::string& value, const Domain& domain, const Target& target) {
  const bool cpu = target.platform == Platform::kCpu;
  for (const auto& [extent, parallel] : domain.loop) {
    const bool elsewhere =
        cpu ? parallel == Parallel::kBlock || parallel == Parallel::kThread : parallel == Parallel::kTask;
    JF_REQUIRE(!elsewhere, "[lower] ", value, " has a ", name(parallel), " axis, which target '", print(target),
               "' does not have; use ", cpu ? "task" : "block and thread");
    JF_REQUIRE(parallel != Parallel::kThread || extent <= target.max_threads_per_block, "[lower] ", value, " has ",
               extent, " threads; the target has ", target.max_threads_per_block, " in a block, split the axis");
  }
}

// Whether the operand, computed in the consumer's loops, has there the index that the consumer reads, as arithmetic.
// Groups alone cannot tell where two outputs that only share a scalar run in one nest.
bool same_indices(const Fusion& segment, const Schedule& schedule, const Op& op, size_t operand) {
  const Domain &from = schedule.domains[op.inputs[operand]], &to = schedule.domains[op.output];
  const std::optional<Nest> nest = make_nest(to, /*lanes=*/false);
  if (!nest) return false;
  const graph::Indexer producer = indexer_in(*nest, from), consumer = indexer_in(*nest, to);
  const std::vector<int> axes = schedule::result_axes(segment, op, operand);
  for (size_t a = 0; a < axes.size(); ++a) {
    if (from.logical[a] == 1) continue;
    if (axes[a] < 0) return false;
    std::vector<int64_t> at_producer(from.logical.size(), 0), at_consumer(to.logical.size(), 0);
    at_producer[a] = 1;
    at_consumer[axes[a]] = 1;
    if (!graph::same(producer.position(at_producer).at, consumer.position(at_consumer).at)) return false;
  }
  return true;
}

// A value computed inside its consumer's loops must have the index there that the consumer reads.
void check_inlined(const Fusion& segment, const Schedule& schedule) {
  const graph::IndexGraph graph(segment, schedule);
  std::vector<bool> computed(segment.values.size(), false);
  for (const Op& op : segment.ops) {
    computed[op.output] = true;
    for (size_t operand = 0; operand < op.inputs.size(); ++operand) {
      const ValueId id = op.inputs[operand];
      if (!computed[id]) continue;
      const int loops = static_cast<int>(schedule.domains[id].loop.size());
      JF_REQUIRE(
          schedule.domains[id].inline_at == loops && loops == static_cast<int>(schedule.domains[op.output].loop.size()),
          "[lower] ", segment.values[id].name, " is inlined at ", schedule.domains[id].inline_at, " of ", loops,
          " loop axes of its consumer ", segment.values[op.output].name,
          "; a value in registers needs all, use transform_like, parallelize_like and inline_most");
      for (int i = 0; i < loops; ++i) {
        JF_REQUIRE(graph.mapped(graph::Mapping::kPermissive, graph.loop_axis(id, i), graph.loop_axis(op.output, i)) ||
                       same_indices(segment, schedule, op, operand),
                   "[lower] loop axis ", i, " of ", segment.values[id].name,
                   " runs over other elements than that of its consumer ", segment.values[op.output].name,
                   "; use transform_like");
      }
    }
  }
}

}  // namespace

void check_legal(const Fusion& segment, const Schedule& schedule, const Target& target) {
  schedule::verify(segment, schedule);
  for (const Op& op : segment.ops) {
    JF_REQUIRE(op.kind != ir::OpKind::kGroupedMatmul, "[lower] ", segment.values[op.output].name,
               " is a grouped product; it runs in a segment of its own");
  }
  const ValueId first = segment.outputs.front();
  check_parallel_types(segment.values[first].name, schedule.domains[first], target);
  for (ValueId id : segment.outputs) {
    JF_REQUIRE(ir::elements(segment.values[id]) > 0, "[lower] ", segment.values[id].name, " has no elements");
    JF_REQUIRE(schedule.domains[id].loop == schedule.domains[first].loop, "[lower] output ", segment.values[id].name,
               " has other loops than output ", segment.values[first].name,
               "; use transform_like and parallelize_like");
  }
  check_inlined(segment, schedule);
}

}  // namespace jf::lower
