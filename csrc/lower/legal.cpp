#include "lower/legal.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "base/target.h"
#include "codegen/dialect.h"
#include "codegen/shared_memory.h"
#include "graph/groups.h"
#include "graph/index.h"
#include "loops/bodies.h"
#include "lower/allocation.h"
#include "lower/bulk.h"
#include "lower/scan.h"
#include "schedule/axes.h"

namespace jf::lower {
namespace {

using ir::Fusion;
using ir::Op;
using ir::ValueId;
using schedule::Domain;
using schedule::Parallel;
using schedule::Schedule;

bool is_parallel(Parallel parallel) { return is_block(parallel) || is_thread(parallel) || parallel == Parallel::kTask; }

// Sizes of what is kept, and indices, count iterations.
void check_iterations(const Domain& domain, const std::string& value) {
  constexpr double kMostIterations = 1e17;
  double iterations = 1;
  for (const auto& axis : domain.loop) iterations *= static_cast<double>(axis.extent);
  JF_REQUIRE(iterations <= kMostIterations, "[lower] the loops of ", value, " have more than ", kMostIterations,
             " iterations; split its axes by smaller factors");
}

void check_parallel_types(const Fusion& segment, ValueId id, const Domain& domain, const Target& target) {
  const std::string& value = segment.values[id].name;
  const bool cpu = target.platform == Platform::kCpu;
  check_iterations(domain, value);
  const schedule::AxisTree axes = schedule::replay(domain, value);
  for (size_t l = 0; l < domain.loop.size(); ++l) {
    const Parallel parallel = domain.loop[l].parallel;
    const bool elsewhere = is_parallel(parallel) && (parallel == Parallel::kTask) != cpu;
    JF_REQUIRE(!elsewhere, "[lower] ", value, " has a ", name(parallel), " axis, which target '", print(target),
               "' does not have; use ", cpu ? "task" : "block and thread");
    JF_REQUIRE(parallel != Parallel::kCluster || has_clusters(target), "[lower] ", value,
               " has a cluster axis, which needs a CUDA device of compute capability 9.0, but the target is '",
               print(target), "'; fold by threads");
    const bool apart = parallel == Parallel::kTask || (is_block(parallel) && parallel != Parallel::kCluster);
    const bool folded_apart = axes.reduced[axes.loop[l]] && apart;
    JF_REQUIRE(!axes.reduced[axes.loop[l]] || static_cast<int>(l) >= domain.inline_at, "[lower] ", value,
               " is inlined at ", domain.inline_at, " loop axes, inside of axis ", l, ", along which it is folded");
    JF_REQUIRE(!folded_apart, "[lower] ", value, " is folded along loop axis ", l, ", which is ", name(parallel), ": ",
               name(parallel), "s of one kernel do not wait for each other, so that folding over them takes a ",
               "second kernel, as fuse makes it without a schedule; make the axis ",
               cpu ? "serial" : "thread or serial", has_clusters(target) ? ", or cluster for up to 8 blocks" : "");
  }
}

// Whether the operand is computed, too, wherever the consumer is. `extents`: of the loops, which have these numbers.
bool is_computed_there(const graph::Indexer& producer, const graph::Indexer& consumer,
                       std::span<const int64_t> extents) {
  const std::vector<graph::Bound> known = consumer.bounds();
  for (const graph::Bound& bound : producer.bounds(true)) {
    const std::optional<int64_t> most = graph::largest(bound.index.at, extents);
    const bool implied = std::any_of(known.begin(), known.end(), [&](const graph::Bound& other) {
      return other.bound <= bound.bound && graph::same(other.index.at, bound.index.at);
    });
    if (!implied && (!most || *most >= bound.bound)) return false;
  }
  return true;
}

// Whether the operand, computed in the consumer's loops, has there the index that the consumer reads, as arithmetic.
// Groups alone cannot tell where two outputs that only share a scalar run in one nest.
bool same_indices(const Fusion& segment, const Schedule& schedule, const Op& op, size_t operand) {
  Domain from = schedule.domains[op.inputs[operand]], to = schedule.domains[op.output];
  if (from.loop.size() != to.loop.size()) return false;
  std::vector<loops::IndexPtr> indices;
  for (size_t l = 0; l < to.loop.size(); ++l) {
    indices.push_back(to.loop[l].extent == 1 ? loops::constant(0) : loops::variable(static_cast<int64_t>(l)));
    from.loop[l].parallel = to.loop[l].parallel = Parallel::kSerial;
  }
  const graph::Indexer producer(from, indices), consumer(to, indices);
  const std::vector<int> axes = schedule::result_axes(segment, op, operand);
  const std::vector<int> nodes = schedule::axis_nodes(segment, from, op.inputs[operand]);
  for (size_t a = 0; a < axes.size(); ++a) {
    if (segment.values[op.inputs[operand]].axes[a].extent == 1) continue;
    if (axes[a] < 0) return false;
    std::vector<int64_t> at_producer(nodes[a] + 1, 0), at_consumer(to.logical.size(), 0);
    at_producer[nodes[a]] = 1;
    at_consumer[axes[a]] = 1;
    if (!graph::same(producer.position(at_producer).at, consumer.position(at_consumer).at)) return false;
  }
  std::vector<int64_t> extents;
  for (const schedule::LoopAxis& axis : to.loop) extents.push_back(axis.extent);
  return is_computed_there(producer, consumer, extents);
}

// By value: whether two of its axes are one to the permissive mapping, as where an array meets its own transpose. Then
// a group does not say which of them a loop runs over.
std::vector<bool> maps_itself(const Fusion& segment, const Schedule& schedule, const graph::IndexGraph& graph) {
  std::vector<bool> result;
  for (size_t id = 0; id < segment.values.size(); ++id) {
    const Domain& domain = schedule.domains[id];
    std::vector<int> nodes;
    for (size_t root = 0; root < domain.logical.size(); ++root) {
      if (domain.logical[root] > 1) nodes.push_back(static_cast<int>(root));
    }
    for (const schedule::Step& step : schedule::replay(domain, segment.values[id].name).steps) {
      if (const auto* insert = std::get_if<schedule::InsertStep>(&step)) nodes.push_back(insert->output);
    }
    std::set<int> groups;
    for (int node : nodes) groups.insert(graph.group(graph::Mapping::kPermissive, {static_cast<ValueId>(id), node}));
    result.push_back(groups.size() < nodes.size());
  }
  return result;
}

// Counts and starts are in memory, and lanes lie along dense axes, on the CPU along ragged ones too.
void check_nested(const Fusion& segment, const Op& op, const Domain& domain, Platform platform) {
  const std::string& value = segment.values[op.output].name;
  for (size_t i = 1; ir::has_nest_operands(op.kind) && i < op.inputs.size(); ++i) {
    const auto found = std::find(segment.inputs.begin(), segment.inputs.end(), op.inputs[i]);
    JF_REQUIRE(found != segment.inputs.end(), "[lower] ", value, ", a ", ir::info(op.kind).name, ", reads ",
               segment.values[op.inputs[i]].name, ", which must come from memory: make it an output of another fusion");
  }
  for (const Op& reader : segment.ops) {
    const bool reads = contains(reader.inputs, op.output);
    JF_REQUIRE(op.kind != ir::OpKind::kCombine || !reads, "[lower] ", value, " is combined, and ",
               segment.values[reader.output].name, " reads it; make it an output, and read it in a fusion of its own");
  }
  if (domain.ragged.empty()) return;
  JF_REQUIRE(!schedule::is_bulk(domain), "[lower] ", value, " is nested and has bulk axes; load it by threads");
  if (platform == Platform::kCpu) return;
  if (domain.loop.empty() || domain.loop.back().parallel != Parallel::kVector) return;
  std::vector<loops::IndexPtr> indices_of_loops(domain.loop.size(), loops::constant(0));
  for (const schedule::Ragged& ragged : domain.ragged) {
    const graph::Position index = graph::Indexer(domain, indices_of_loops).at_root(ragged.axis);
    JF_REQUIRE(!index.lane_step || *index.lane_step == 0, "[lower] the lanes of ", value,
               " lie along its ragged axis, ",
               "of which each component has another number of elements; make a dense axis the vector axis");
  }
}

// What is computed is there at its own index only; an op that reads it elsewhere reads memory.
void check_same_place(const Fusion& segment, const Op& op, size_t operand) {
  if (!ir::reads_memory(op.kind) || operand > 0) return;
  const ir::Value& value = segment.values[op.inputs[0]];
  const bool anywhere = op.kind == ir::OpKind::kTake || op.kind == ir::OpKind::kSearch;
  JF_REQUIRE(!anywhere && op.kind != ir::OpKind::kPartition, "[lower] ", segment.values[op.output].name, ", a ",
             ir::info(op.kind).name, ", reads ", value.name, ", which must come from memory; make it an output, and ",
             "read it in a kernel of its own: see propose");
  const std::vector<int> axes = schedule::result_axes(segment, op, 0);
  for (size_t a = 0; a < axes.size(); ++a) {
    JF_REQUIRE(axes[a] >= 0 || value.axes[a].extent == 1, "[lower] ", segment.values[op.output].name, ", a ",
               ir::info(op.kind).name, ", reads ", value.name, " along its axis ", a,
               " at other places than it is computed at; make ", value.name,
               " an output, and read it in a kernel of its own: see propose");
  }
}

// A value must have the index that its consumer reads: in the loops that they share, and, where it is kept in registers
// between loops of their own, in those too.
void check_reads(const Fusion& segment, const Schedule& schedule) {
  const graph::IndexGraph graph(segment, schedule, false);
  const std::vector<bool> unclear = maps_itself(segment, schedule, graph);
  std::vector<bool> computed(segment.values.size(), false);
  for (const Op& op : segment.ops) {
    computed[op.output] = true;
    for (size_t operand = 0; operand < op.inputs.size(); ++operand) {
      const ValueId id = op.inputs[operand];
      if (!computed[id]) continue;
      const Domain &from = schedule.domains[id], &to = schedule.domains[op.output];
      check_same_place(segment, op, operand);
      const schedule::AxisTree axes = schedule::replay(from, segment.values[id].name);
      std::optional<bool> same;
      for (size_t l = 0; l < from.loop.size(); ++l) {
        const bool shared = static_cast<int>(l) < from.inline_at;
        if (!shared && (axes.inserted[axes.loop[l]] || axes.reduced[axes.loop[l]])) continue;
        const bool own = from.loop[l].parallel == Parallel::kCluster;  // each block's in its own memory
        if (!shared && !own && from.memory == schedule::Memory::kShared) continue;
        JF_REQUIRE(l < to.loop.size() && from.loop[l] == to.loop[l], "[lower] ", segment.values[id].name,
                   " is kept in registers from its loop axis ", l, " on, but its consumer ",
                   segment.values[op.output].name, " has another axis there; use transform_like",
                   to.in_parts ? cat("(", segment.values[op.output].name, ")") : "",
                   ", parallelize_like and inline_most");
        const bool mapped =
            graph.mapped(graph::Mapping::kPermissive, graph.loop_axis(id, l), graph.loop_axis(op.output, l));
        if (mapped && !unclear[id] && !unclear[op.output]) continue;
        if (!same) same = same_indices(segment, schedule, op, operand);
        JF_REQUIRE(*same, "[lower] loop axis ", l, " of ", segment.values[id].name,
                   " runs over other elements than that of its consumer ", segment.values[op.output].name,
                   "; use transform_like");
      }
    }
  }
}

}  // namespace

void check_legal(const Fusion& segment, const Schedule& schedule, const Target& target) {
  schedule::verify(segment, schedule);
  schedule::verify_inlined(segment, schedule);
  check_bulk(segment, schedule, target);
  std::set<int64_t> widths;
  auto check_lanes = [&](ValueId id) {
    const Domain& domain = schedule.domains[id];
    if (domain.loop.empty() || domain.loop.back().parallel != Parallel::kVector) return;
    widths.insert(domain.loop.back().extent);
    JF_REQUIRE(widths.size() < 2, "[lower] ", segment.values[id].name, " has ", domain.loop.back().extent,
               " lanes and another value has not; give all vector axes one extent");
  };
  for (const Op& op : segment.ops) {
    const std::string& value = segment.values[op.output].name;
    JF_REQUIRE(op.kind != ir::OpKind::kGroupedMatmul, "[lower] ", value,
               " is a grouped product; it runs in a segment of its own");
    JF_REQUIRE(op.kind != ir::OpKind::kConcat, "[lower] ", value,
               " is a concat, which is no work: make its operands outputs, as Scheduler(fusion) does");
    const Domain& domain = schedule.domains[op.output];
    JF_REQUIRE(domain.memory == schedule::Memory::kRegister || target.platform == Platform::kCuda, "[lower] ", value,
               " is shared between threads, which target '", print(target), "' does not have; keep it in registers");
    JF_REQUIRE(domain.memory == schedule::Memory::kRegister || ir::info(op.kind).op_class != ir::OpClass::kReduce,
               "[lower] ", value, " is a reduction, complete in every thread's registers; share a copy of it");
    check_nested(segment, op, domain, target.platform);
    check_allocation(segment, schedule, op.output);
    check_parallel_types(segment, op.output, domain, target);
    check_lanes(op.output);
    if (op.kind == ir::OpKind::kSpread) {
      const bool in_memory = contains(segment.inputs, op.inputs[0]);
      JF_REQUIRE(in_memory, "[lower] ", value, " spreads ", segment.values[op.inputs[0]].name,
                 ", which must come from memory: make it an output of another fusion");
    }
    if (ir::info(op.kind).op_class == ir::OpClass::kScan) check_scan(segment, op.output, domain);
  }
  for (ValueId id : segment.outputs) {
    check_parallel_types(segment, id, schedule.domains[id], target);
    check_lanes(id);
    JF_REQUIRE(ir::elements(segment.values[id]) > 0, "[lower] ", segment.values[id].name, " has no elements");
  }
  check_reads(segment, schedule);
}

void check_size(const loops::Kernel& kernel, const Target& target) {
  // A part of the stack of XLA's threads; a kernel that keeps more is slow anyway.
  constexpr int64_t kMaxArrayBytes = int64_t{1} << 18;
  int64_t bytes = 0;
  for (const loops::Array& array : kernel.arrays) {
    // Bounded, or together they may be more than 64 bits count.
    bytes += std::min(array.size, int64_t{1} << 40) * kernel.width * size_of(compute_dtype(array.dtype));
  }
  JF_REQUIRE(bytes <= kMaxArrayBytes, "[lower] ", kernel.name, " keeps ", bytes,
             " bytes in each thread's registers and ", "stack; at most ", kMaxArrayBytes,
             ": inline more, or compute some values again");
  if (target.platform == Platform::kCpu) return;
  const int64_t most = std::max(kernel.block, kernel.block_y), fit = target.max_threads_per_block;
  const int64_t threads = most > fit ? most : kernel.block * kernel.block_y;
  JF_REQUIRE(threads <= fit, "[lower] ", kernel.name, " has ", threads, " threads; the target has ", fit,
             " in a block, split the axis");
  bool folds = false;
  loops::for_each(kernel.body, [&](const auto& node) {
    if constexpr (std::is_same_v<std::decay_t<decltype(node)>, loops::Combine>) {
      folds = folds || node.threads || node.threads_y || node.cluster;
    }
    folds = folds || std::is_same_v<std::decay_t<decltype(node)>, loops::ScanThreads>;
  });
  const bool whole_warps = kernel.block % kWarp == 0 || kWarp % kernel.block == 0;
  JF_REQUIRE(!folds || whole_warps, "[lower] ", kernel.name, " folds or scans over blocks of ", kernel.block,
             " threads; expected a power of two up to ", kWarp, " or a multiple of ", kWarp,
             ", split the thread axis so");
  const int64_t shared = codegen::shared_memory(kernel).bytes;
  JF_REQUIRE(shared <= target.max_shared_bytes, "[lower] ", kernel.name, " needs ", shared,
             " bytes of shared memory; a block of the target has ", target.max_shared_bytes,
             ": inline shared values deeper, store smaller parts of them, or in fewer stages");
  JF_REQUIRE(kernel.cluster <= kMostBlocksOfCluster, "[lower] ", kernel.name, " has ", kernel.cluster,
             " iterations of cluster; at most ", kMostBlocksOfCluster, ": split the axis");
  const int64_t most_blocks = codegen::kMostBlocks / kernel.cluster;
  JF_REQUIRE(kernel.grid <= most_blocks, "[lower] ", kernel.name, " has ", kernel.grid,
             " iterations of block; at most ", most_blocks, ": split the axis, the outer one serial");
  JF_REQUIRE(kernel.grid_y <= codegen::kMostBlocksAlongY, "[lower] ", kernel.name, " has ", kernel.grid_y,
             " iterations of block_y; at most ", codegen::kMostBlocksAlongY, ": use block for the longer axis");
}

}  // namespace jf::lower
