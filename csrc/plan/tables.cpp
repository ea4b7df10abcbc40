#include "plan/tables.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "plan/recompute.h"

namespace jf::plan {
namespace {

using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::ValueId;

// Instructions of one element. A division and what multiprocessors approximate take a few, what is computed by range
// reduction and polynomials takes many: 17 million sines, cosines and powers took 200 us of an H200.
constexpr int64_t kSimple = 1, kApproximated = 10, kLibrary = 60, kPower = 120;
// An H200, and two cores with AVX-512, issue so many, of each lane, while a byte is on its way.
constexpr int64_t kPerByte = 5;
// Neighbours along the last axis of which a thread computes what they have in common once.
constexpr int64_t kThreadLanes = 4;
// Threads that share an element of a table, at least.
constexpr int64_t kLeastShared = 16;
// What one more kernel has to save: twice the time of its launch, of 3 us. Two cores of a CPU need some 10 us for one.
constexpr int64_t kLaunch = 200'000'000, kCpuLaunch = 4'000'000;
// Ops that a value is computed from, looked at.
constexpr size_t kMostShared = 512;

int64_t instructions(OpKind kind) {
  switch (kind) {
    case OpKind::kConvert:
    case OpKind::kBitcast: return 0;
    case OpKind::kFloor:
    case OpKind::kCeil:
    case OpKind::kRoundEven:
    case OpKind::kRoundAway:
    case OpKind::kIsFinite: return kSimple;
    case OpKind::kExp:
    case OpKind::kExp2:
    case OpKind::kLog:
    case OpKind::kLog2:
    case OpKind::kLogistic:
    case OpKind::kTanh:
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kReciprocal:
    case OpKind::kDiv:
    case OpKind::kRem: return kApproximated;
    case OpKind::kPow: return kPower;
    default: break;
  }
  if (ir::info(kind).op_class != OpClass::kPointwise) return 0;
  return ir::info(kind).operands == ir::OperandTypes::kFloating ? kLibrary : kSimple;
}

class TableFinder {
 public:
  TableFinder(const ir::Fusion& fusion, const Clusters& clusters, const Target& target)
      : fusion_(fusion),
        clusters_(clusters),
        launch_(target.platform == Platform::kCuda ? kLaunch : kCpuLaunch),
        definition_(fusion.values.size(), nullptr) {
    for (const Op& op : fusion.ops) definition_[op.output] = &op;
  }

  std::vector<bool> run() {
    std::map<std::vector<int64_t>, std::map<ValueId, int64_t>> shared;  // by who shares: what, and among how many lanes
    for (const Op& op : fusion_.ops) {
      if (op.kind != OpKind::kBroadcast) continue;
      const ir::Value& to = fusion_.values[op.output];
      const ValueId from = before_broadcasts(op.inputs[0]);
      const int64_t lanes = lanes_of(op);
      if (!is_free(from) || ir::elements(to) < kLeastShared * lanes * ir::elements(fusion_.values[from])) continue;
      shared[iteration_shape(to)].emplace(from, lanes);
    }
    std::vector<bool> tables(fusion_.values.size(), false);
    for (const auto& [shape, values] : shared) {
      for (ValueId id : dear(shape, values)) tables[id] = true;
    }
    return tables;
  }

 private:
  bool is_free(ValueId id) const {
    const Op* op = definition_[id];
    if (op == nullptr || clusters_.of[id] >= 0) return false;
    const OpClass op_class = ir::info(op->kind).op_class;
    return op_class == OpClass::kPointwise || op_class == OpClass::kConstant || op_class == OpClass::kIota ||
           op->kind == OpKind::kBroadcast || op->kind == OpKind::kSqueeze;
  }

  bool divides_by_constant(const Op& op) const {
    if (op.kind != OpKind::kDiv && op.kind != OpKind::kRem) return false;
    const Op* by = definition_[before_broadcasts(op.inputs[1])];
    if (by != nullptr && by->kind == OpKind::kConvert) by = definition_[by->inputs[0]];
    return by != nullptr && by->kind == OpKind::kConstant;
  }
  ValueId before_broadcasts(ValueId id) const {
    while (definition_[id] != nullptr && definition_[id]->kind == OpKind::kBroadcast) id = definition_[id]->inputs[0];
    return id;
  }
  // How many neighbours a broadcast gives the same element.
  int64_t lanes_of(const Op& broadcast) const {
    const std::vector<ir::Axis>&from = fusion_.values[broadcast.inputs[0]].axes,
          &to = fusion_.values[broadcast.output].axes;
    const std::vector<int64_t>& dims = std::get<ir::Dims>(broadcast.attribute).dims;
    int64_t run = 1;
    for (size_t a = to.size(), next = dims.size(); a-- > 0 && run < kThreadLanes;) {
      const bool mapped = next > 0 && dims[next - 1] == static_cast<int64_t>(a);
      if (mapped && from[--next].extent > 1) break;
      run *= to[a].extent;
    }
    return std::min(run, kThreadLanes);
  }

  // Instructions of the ops that a value takes and that are not in `seen`, which then are; no more than `most` matter.
  int64_t cost(ValueId value, std::set<ValueId>& seen, int64_t most) const {
    int64_t sum = 0;
    std::vector<ValueId> todo = {value};
    while (!todo.empty() && sum <= most && seen.size() < kMostShared) {
      const ValueId id = todo.back();
      todo.pop_back();
      if (!is_free(id) || !seen.insert(id).second) continue;
      const Op& op = *definition_[id];
      sum += divides_by_constant(op) ? kSimple : instructions(op.kind);
      todo.insert(todo.end(), op.inputs.begin(), op.inputs.end());
    }
    return sum;
  }

  // Those of the values that the elements of a shape had better read: all that take longer than that, or none.
  std::vector<ValueId> dear(const std::vector<int64_t>& shape, const std::map<ValueId, int64_t>& values) const {
    int64_t elements = 1, again = 0, once = 0, bytes = 0;
    for (int64_t extent : shape) elements *= extent;
    std::vector<ValueId> tables;
    std::set<ValueId> together;
    for (const auto& [id, lanes] : values) {
      const int64_t own = ir::elements(fusion_.values[id]), reading = kPerByte * size(id);
      std::set<ValueId> alone;
      if (cost(id, alone, reading) <= reading) continue;
      const int64_t added = cost(id, together, std::numeric_limits<int64_t>::max());
      again += added * (elements / lanes);
      once += added * own;
      bytes += size(id) * (elements / lanes / 2 + 2 * own);  // what many read comes from the cache
      tables.push_back(id);
    }
    const int64_t moved = traffic(elements);
    const bool pays = std::max(again, kPerByte * moved) > once + kPerByte * (moved + bytes) + launch_;
    return pays ? tables : std::vector<ValueId>{};
  }

  // What a kernel of so many elements moves, if it reads and stores all inputs and outputs of its size.
  int64_t traffic(int64_t elements) const {
    int64_t bytes = 0;
    for (const std::vector<ValueId>* ids : {&fusion_.inputs, &fusion_.outputs}) {
      for (ValueId id : *ids) {
        const int64_t own = ir::elements(fusion_.values[id]);
        if (elements / 2 <= own && own <= 4 * elements) bytes += std::min(own, 2 * elements) * size(id);
      }
    }
    return bytes;
  }

  int64_t size(ValueId id) const { return size_of(fusion_.values[id].dtype); }

  const ir::Fusion& fusion_;
  const Clusters& clusters_;
  const int64_t launch_;
  std::vector<const Op*> definition_;  // by value; null for inputs
};

}  // namespace

std::vector<bool> find_tables(const ir::Fusion& fusion, const Clusters& clusters, const Target& target) {
  const bool nested = std::any_of(fusion.values.begin(), fusion.values.end(),
                                  [](const ir::Value& value) { return ir::ragged_axis(value) >= 0; });
  return nested ? std::vector<bool>(fusion.values.size(), false) : TableFinder(fusion, clusters, target).run();
}

}  // namespace jf::plan
