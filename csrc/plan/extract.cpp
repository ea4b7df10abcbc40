#include "plan/extract.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "ir/append.h"
#include "ir/verify.h"
#include "schedule/axes.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::Value;
using ir::ValueId;

class Extractor {
 public:
  Extractor(const Fusion& whole, const std::string& name) : whole_(whole) {
    segment_.fusion.name = name;
    names_.insert(name);
  }

  ValueId add_input(ValueId id) {
    const auto [entry, fresh] = inputs_.emplace(id, static_cast<ValueId>(segment_.fusion.values.size()));
    if (!fresh) return entry->second;
    Value value = whole_.values[id];
    for (ir::Axis& axis : value.axes) axis.kind = ir::AxisKind::kIteration;  // memory holds every element
    value.name = unique(value.name);
    segment_.fusion.values.push_back(std::move(value));
    segment_.fusion.inputs.push_back(entry->second);
    segment_.inputs.push_back(id);
    return entry->second;
  }
  // Axis kinds may change, since a broadcast that comes from memory repeats nothing.
  ValueId add_op(const Op& op, std::vector<ValueId> operands) {
    Value stated = whole_.values[op.output];
    stated.name = unique(stated.name);
    return ir::append(segment_.fusion, op.kind, std::move(operands), op.attribute, stated, op.label);
  }
  void add_output(ValueId of_whole, ValueId id) {
    segment_.fusion.outputs.push_back(id);
    segment_.outputs.push_back(of_whole);
  }
  Segment finish() && {
    ir::verify(segment_.fusion);
    return std::move(segment_);
  }

  Segment segment_;

 private:
  std::string unique(const std::string& name) {
    std::string result = name;
    for (int copy = 2; !names_.insert(result).second; ++copy) result = cat(name, "_", copy);
    return result;
  }

  const Fusion& whole_;
  std::map<ValueId, ValueId> inputs_;
  std::set<std::string> names_;
};

// `folds`: the places of a reduction's dims.
Place operand_place(const Fusion& whole, const Op& op, size_t operand, const Place& result, const Place* folds) {
  Place place;
  if (folds == nullptr) {
    for (int axis : schedule::result_axes(whole, op, operand)) place.push_back(axis < 0 ? -1 : result[axis]);
    return place;
  }
  const ir::Reduce& reduce = std::get<ir::Reduce>(op.attribute);
  size_t next_kept = 0, next_folded = 0;
  for (size_t axis = 0; axis < whole.values[op.inputs[operand]].axes.size(); ++axis) {
    const auto dim = static_cast<int64_t>(axis);
    const bool goes = std::binary_search(reduce.dims.begin(), reduce.dims.end(), dim);
    if (!goes || (reduce.parts > 0 && dim == reduce.dims[0])) ++next_kept;
    place.push_back(goes ? (*folds)[next_folded++] : result[next_kept - 1]);
  }
  return place;
}

}  // namespace

std::vector<size_t> ops_between(const Fusion& fusion, const std::set<ValueId>& read,
                                const std::vector<ValueId>& outputs) {
  std::vector<size_t> ops;
  std::set<ValueId> needed(outputs.begin(), outputs.end());
  for (size_t i = fusion.ops.size(); i-- > 0;) {
    const Op& op = fusion.ops[i];
    if (needed.count(op.output) == 0 || read.count(op.output) > 0) continue;
    ops.push_back(i);
    needed.insert(op.inputs.begin(), op.inputs.end());
  }
  std::reverse(ops.begin(), ops.end());
  return ops;
}

Segment extract_fused(const Fusion& whole, const Draft& draft, const std::string& name) {
  std::set<ValueId> computed;
  for (size_t number : draft.ops) computed.insert(whole.ops[number].output);
  // Backwards: at which places each value is needed.
  std::map<ValueId, std::set<Place>> places;
  std::set<ValueId> read;
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const ValueId id = draft.outputs[i];
    if (computed.count(id) > 0) {
      places[id].insert(draft.places[i]);
    } else {
      read.insert(id);
    }
  }
  auto is_computed = [&](const Op& op, size_t operand) {
    return computed.count(op.inputs[operand]) > 0 && (operand > 0 || !ir::reads_memory(op.kind));
  };
  auto place_of = [&](size_t number, size_t operand, const Place& result) {
    const auto folds = draft.folds.find(number);
    return operand_place(whole, whole.ops[number], operand, result,
                         folds == draft.folds.end() ? nullptr : &folds->second);
  };
  for (auto number = draft.ops.rbegin(); number != draft.ops.rend(); ++number) {
    const Op& op = whole.ops[*number];
    for (const Place& place : places[op.output]) {
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        if (is_computed(op, i)) {
          places[op.inputs[i]].insert(place_of(*number, i, place));
        } else {
          read.insert(op.inputs[i]);
        }
      }
    }
  }

  Extractor extractor(whole, name);
  for (ValueId id : read) extractor.add_input(id);
  std::map<std::pair<ValueId, Place>, ValueId> made;
  for (size_t number : draft.ops) {
    const Op& op = whole.ops[number];
    for (const Place& place : places[op.output]) {
      std::vector<ValueId> operands;
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        const ValueId id = op.inputs[i];
        const bool here = is_computed(op, i);
        operands.push_back(here ? made.at({id, place_of(number, i, place)}) : extractor.add_input(id));
      }
      made[{op.output, place}] = extractor.add_op(op, std::move(operands));
    }
  }
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const ValueId id = draft.outputs[i];
    const bool here = computed.count(id) > 0;
    extractor.add_output(id, here ? made.at({id, draft.places[i]}) : extractor.add_input(id));
  }
  return std::move(extractor).finish();
}

Segment extract_nested(const Fusion& whole, const Draft& draft, const std::string& name) {
  Extractor extractor(whole, name);
  std::map<ValueId, ValueId> made;
  for (size_t number : draft.ops) {
    const Op& op = whole.ops[number];
    std::vector<ValueId> operands;
    for (ValueId id : op.inputs) {
      const auto found = made.find(id);
      operands.push_back(found != made.end() ? found->second : extractor.add_input(id));
    }
    made[op.output] = extractor.add_op(op, std::move(operands));
  }
  for (ValueId id : draft.outputs) extractor.add_output(id, made.at(id));
  return std::move(extractor).finish();
}

Segment extract_grouped(const Fusion& whole, const Draft& draft, const std::string& name) {
  const Op& op = whole.ops[draft.ops.front()];
  Extractor extractor(whole, name);
  std::vector<ValueId> operands;
  for (ValueId id : op.inputs) operands.push_back(extractor.add_input(id));
  extractor.add_output(op.output, extractor.add_op(op, std::move(operands)));
  Segment segment = std::move(extractor).finish();
  segment.inputs = op.inputs;
  return segment;
}

}  // namespace jf::plan
