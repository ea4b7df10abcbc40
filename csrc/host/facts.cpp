#include "host/facts.h"

#include <algorithm>
#include <bit>
#include <map>

#include "base/error.h"
#include "base/lists.h"
#include "host/program.h"
#include "host/report.h"
#include "host/request.h"
#include "host/stages.h"

namespace jf::host {
namespace {

// Elements that are computed: along a broadcast axis all are one.
int64_t computed(const ir::Value& value) {
  int64_t count = 1;
  for (const ir::Axis& axis : value.axes) count *= axis.kind == ir::AxisKind::kBroadcast ? 1 : axis.extent;
  return count;
}

int64_t operations(const ir::Fusion& fusion, const ir::Op& op) {
  switch (ir::info(op.kind).op_class) {
    case ir::OpClass::kPointwise:
      return op.kind == ir::OpKind::kConvert || op.kind == ir::OpKind::kBitcast ? 0
                                                                                : computed(fusion.values[op.output]);
    case ir::OpClass::kReduce:
    case ir::OpClass::kScan: return ir::elements(fusion.values[op.inputs[0]]);
    case ir::OpClass::kGrouped: {
      const auto& grouped = std::get<ir::Grouped>(op.attribute);
      const ir::Value &lhs = fusion.values[op.inputs[0]], &out = fusion.values[op.output];
      // Each row of a contraction meets the columns of one group.
      return grouped.mode == ir::GroupedMode::kContraction ? 2 * ir::elements(lhs) * out.axes.back().extent
                                                           : 2 * ir::elements(out) * lhs.axes.back().extent;
    }
    case ir::OpClass::kSearch: {
      const auto length = static_cast<uint64_t>(ir::shape(fusion.values[op.inputs[0]]).back());
      return static_cast<int64_t>(std::bit_width(length)) * computed(fusion.values[op.output]);
    }
    default: return 0;
  }
}

// Elements of an operand that an op reads.
int64_t elements_read(const ir::Fusion& fusion, const ir::Op& op, size_t operand) {
  if (op.kind == ir::OpKind::kSlice || (op.kind == ir::OpKind::kTake && operand == 0)) {
    return ir::elements(fusion.values[op.output]);
  }
  if (const auto* pad = std::get_if<ir::Pad>(&op.attribute)) {
    return product(pad->counts);
  }
  return ir::elements(fusion.values[op.inputs[operand]]);
}

// What slices, paddings and gathers take of a value that nothing else reads, at most all of it.
int64_t elements_read(const ir::Fusion& fusion, ir::ValueId id) {
  const int64_t all = ir::elements(fusion.values[id]);
  int64_t read = std::count(fusion.outputs.begin(), fusion.outputs.end(), id) > 0 ? all : 0;
  for (const ir::Op& op : fusion.ops) {
    for (size_t i = 0; i < op.inputs.size(); ++i) read += op.inputs[i] == id ? elements_read(fusion, op, i) : 0;
  }
  return std::min(read, all);
}

Flow flow(const ir::Value& value, int64_t elements) {
  return {value.name, std::string(name(value.dtype)), ir::shape(value), bytes_of(value.dtype, elements)};
}

}  // namespace

KernelFacts kernel_facts(const ir::Fusion& segment, const ir::Fusion& whole, const std::vector<ir::ValueId>& inputs,
                         const std::vector<ir::ValueId>& outputs) {
  std::map<ir::ValueId, ir::ValueId> part_of;
  for (const ir::Op& op : whole.ops) {
    if (op.kind != ir::OpKind::kConcat) continue;
    for (ir::ValueId id : op.inputs) part_of[id] = op.output;
  }
  KernelFacts facts;
  facts.name = segment.name;
  for (size_t i = 0; i < inputs.size(); ++i) {
    // A grouped product lists an operand as often as it takes it, its segment once.
    const bool alike = inputs.size() == segment.inputs.size();
    const int64_t elements = alike ? elements_read(segment, segment.inputs[i]) : ir::elements(whole.values[inputs[i]]);
    facts.reads.push_back(flow(whole.values[inputs[i]], elements));
  }
  for (ir::ValueId id : outputs) {
    Flow written = flow(whole.values[id], ir::elements(whole.values[id]));
    if (const auto of = part_of.find(id); of != part_of.end()) written.value = whole.values[of->second].name;
    facts.writes.push_back(std::move(written));
  }
  for (const ir::Op& op : segment.ops) facts.operations += operations(segment, op);
  return facts;
}

KernelFacts joined(const KernelFacts& first, const std::vector<KernelFacts>& tails, const std::set<std::string>& reads,
                   bool keeps) {
  KernelFacts facts = first;
  facts.writes.clear();
  const size_t own = facts.reads.size();
  for (const KernelFacts& tail : tails) {
    for (const Flow& read : tail.reads) {
      const auto is_same = [&](const Flow& other) { return other.value == read.value; };
      const auto others = facts.reads.begin() + static_cast<std::ptrdiff_t>(own);
      if (reads.count(read.value) > 0 && std::none_of(others, facts.reads.end(), is_same)) facts.reads.push_back(read);
    }
    facts.writes.insert(facts.writes.end(), tail.writes.begin(), tail.writes.end());
    facts.operations += tail.operations;
    facts.reason +=
        cat("; then ", tail.name, " on its sums, which are ", keeps ? "stored, too: " : "not stored: ", tail.reason);
  }
  if (keeps) facts.writes.insert(facts.writes.end(), first.writes.begin(), first.writes.end());
  return facts;
}

std::vector<std::string> names(const ir::Fusion& fusion, const std::vector<ir::ValueId>& ids) {
  std::vector<std::string> found;
  for (const ir::ValueId id : ids) found.push_back(fusion.values[id].name);
  return found;
}

KernelFacts kernel_facts(const ir::Fusion& fusion) {
  return kernel_facts(fusion, fusion, fusion.inputs, fusion.outputs);
}

std::vector<LaunchFacts> facts(const std::string& program, const std::string& target_text) {
  const Target target = parse_target(target_text);
  return reported(program, [&] {
    const Request request = parse_request(program);
    Program built = build(request, target);
    if (built.outputs.empty()) built.outputs = names(request.fusion, request.fusion.outputs);
    std::vector<LaunchFacts> result;
    size_t next = 0;
    for (KernelFacts& kernel : built.facts) {
      LaunchFacts launched{std::move(kernel), "", "", {}};
      for (size_t i = 0; i < built.outputs.size(); ++i) {
        const auto is_written = [&](const Flow& flow) { return flow.value == built.outputs[i]; };
        const std::vector<Flow>& writes = launched.kernel.writes;
        if (std::any_of(writes.begin(), writes.end(), is_written)) launched.results.emplace_back(i, built.outputs[i]);
      }
      if (launched.kernel.strategy != "empty") {
        if (const auto source = compiled_step(built.steps.at(next++), target).source) {
          const StepLaunch& l = source->launch;
          launched.entry = l.entry;
          launched.launch =
              target.platform == Platform::kCpu
                  ? cat(l.grid.x, l.grid.x == 1 ? " task" : " tasks")
                  : cat("grid ", l.grid.x, " x ", l.grid.y, l.cluster > 1 ? cat(" in clusters of ", l.cluster) : "",
                        ", block ", l.block.x, " x ", l.block.y);
        }
      }
      result.push_back(std::move(launched));
    }
    return result;
  });
}

}  // namespace jf::host
