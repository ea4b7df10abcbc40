#include "lower/compute.h"

#include <map>

#include "base/error.h"
#include "schedule/axes.h"

namespace jf::lower {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpClass;
using ir::ValueId;
using loops::RegisterId;

class Writer {
 public:
  Writer(const Fusion& segment, const schedule::Schedule& schedule, const Nest& nest)
      : segment_(segment),
        schedule_(schedule),
        nest_(nest),
        register_of_(segment.values.size(), -1),
        input_number_(segment.values.size(), -1) {
    for (size_t i = 0; i < segment.inputs.size(); ++i) input_number_[segment.inputs[i]] = static_cast<int>(i);
  }

  // False when lanes do not work out.
  bool run() {
    for (const Op& op : segment_.ops) write(op);
    for (size_t i = 0; i < segment_.outputs.size(); ++i) {
      const ValueId id = segment_.outputs[i];
      const std::vector<int64_t> strides = graph::strides(ir::shape(segment_.values[id]));
      const bool is_copy = input_number_[id] >= 0;
      const RegisterId value = is_copy ? load(id, id, strides) : register_of_[id];
      const auto [at, step] = position(id, strides);
      emit(loops::Store{static_cast<int>(segment_.inputs.size() + i), at, step, value});
    }
    return even_;
  }

  Computation result;

 private:
  struct Place {
    loops::IndexPtr at;
    int64_t lane_step;
  };

  template <class Node>
  void emit(Node node) {
    result.body.push_back({std::move(node)});
  }
  RegisterId new_register(DType dtype) {
    result.registers.push_back(dtype);
    return static_cast<RegisterId>(result.registers.size()) - 1;
  }
  // A weighted position of the axes of `value`.
  Place position(ValueId value, const std::vector<int64_t>& weights) {
    const graph::Position p = indexer_in(nest_, schedule_.domains[value]).position(weights);
    even_ = even_ && p.lane_step.has_value();
    return {p.at, p.lane_step.value_or(0)};
  }

  // An element of input `id`, at weights of the axes of `at_value`.
  RegisterId load(ValueId id, ValueId at_value, const std::vector<int64_t>& weights) {
    const auto [at, step] = position(at_value, weights);
    for (const auto& [other_at, other_step, loaded] : loads_[id]) {
      if (other_step == step && graph::same(other_at, at)) return loaded;
    }
    const RegisterId loaded = new_register(segment_.values[id].dtype);
    emit(loops::Load{loaded, input_number_[id], at, step});
    loads_[id].push_back({at, step, loaded});
    return loaded;
  }

  RegisterId operand(const Op& op, size_t i) {
    const ValueId id = op.inputs[i];
    if (input_number_[id] < 0) return register_of_[id];
    const std::vector<int64_t> strides = graph::strides(ir::shape(segment_.values[id]));
    const std::vector<int> axes = schedule::result_axes(segment_, op, i);
    std::vector<int64_t> weights(segment_.values[op.output].axes.size(), 0);
    for (size_t a = 0; a < axes.size(); ++a) {
      if (axes[a] >= 0) weights[axes[a]] = strides[a];
    }
    return load(id, op.output, weights);
  }

  void write(const Op& op) {
    std::vector<RegisterId> operands;
    for (size_t i = 0; i < op.inputs.size(); ++i) operands.push_back(operand(op, i));
    RegisterId& result_register = register_of_[op.output];
    switch (ir::info(op.kind).op_class) {
      case OpClass::kView: result_register = operands[0]; break;  // the same element, at the same iteration
      case OpClass::kIota: {
        std::vector<int64_t> weights(segment_.values[op.output].axes.size(), 0);
        weights[std::get<ir::Dims>(op.attribute).dims[0]] = 1;
        const auto [at, step] = position(op.output, weights);
        result_register = new_register(segment_.values[op.output].dtype);
        emit(loops::FromIndex{result_register, at, step});
        break;
      }
      case OpClass::kConstant:
      case OpClass::kPointwise: {
        const DType own = segment_.values[op.output].dtype;
        const DType from = op.inputs.empty() ? own : segment_.values[op.inputs[0]].dtype;
        result_register = new_register(own);
        emit(loops::Compute{result_register, op.kind, std::move(operands), op.attribute, from, op.label});
        break;
      }
      case OpClass::kGrouped: JF_CHECK(false, "a grouped product in a pointwise segment");
    }
  }

  struct Loaded {
    loops::IndexPtr at;
    int64_t lane_step;
    RegisterId result;
  };

  const Fusion& segment_;
  const schedule::Schedule& schedule_;
  const Nest& nest_;
  std::vector<RegisterId> register_of_;  // by value
  std::vector<int> input_number_;        // by value, -1 for what is no input
  std::map<ValueId, std::vector<Loaded>> loads_;
  bool even_ = true;
};

}  // namespace

std::optional<Computation> compute(const Fusion& segment, const schedule::Schedule& schedule, const Nest& nest) {
  Writer writer(segment, schedule, nest);
  if (!writer.run()) return std::nullopt;
  return std::move(writer.result);
}

}  // namespace jf::lower
