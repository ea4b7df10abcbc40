#include "ir/results.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "base/lists.h"
#include "ir/append.h"
#include "ir/text.h"
#include "ir/unused.h"

namespace jf::ir {
namespace {

// How an output is a part of a larger array; null where it is an array by itself.
const Place* place_of(const Fusion& fusion, ValueId output) {
  const Op* op = definition(fusion, output);
  return op == nullptr ? nullptr : std::get_if<Place>(&op->attribute);
}

// The axis along which the parts stand.
int64_t axis_of(const Fusion& fusion, const Result& result) {
  const std::vector<int64_t> part = shape(fusion.values[result.outputs.front()]);
  const auto [own, whole] = std::mismatch(part.begin(), part.end(), result.shape.begin());
  return own == part.end() ? 0 : own - part.begin();
}

std::string unused_name(const Fusion& fusion) {
  std::set<std::string> names = {fusion.name};
  for (const Value& value : fusion.values) names.insert(value.name);
  size_t number = fusion.values.size();
  while (names.count(cat("t", number)) > 0) ++number;
  return cat("t", number);
}

}  // namespace

std::vector<Result> results(const Fusion& fusion) {
  std::vector<Result> found;
  for (ValueId id : fusion.outputs) {
    const Place* place = place_of(fusion, id);
    const Value& value = fusion.values[id];
    const bool goes_on = place != nullptr && !found.empty() && found.back().missing >= elements(value) &&
                         found.back().missing > 0 && found.back().shape == place->shape &&
                         fusion.values[found.back().outputs.front()].dtype == value.dtype;
    if (!goes_on) {
      const std::vector<int64_t> whole = place == nullptr ? shape(value) : place->shape;
      found.push_back({{}, whole, product(whole)});
    }
    found.back().outputs.push_back(id);
    found.back().missing -= elements(value);
  }
  return found;
}

std::vector<ValueId> parts_of_outputs(const Fusion& fusion) {
  std::set<ValueId> read;
  for (const Op& op : fusion.ops) read.insert(op.inputs.begin(), op.inputs.end());
  std::vector<ValueId> outputs;
  for (ValueId id : fusion.outputs) {
    const Op* op = definition(fusion, id);
    const bool parts = op != nullptr && op->kind == OpKind::kConcat && read.count(id) == 0;
    if (parts) {
      outputs.insert(outputs.end(), op->inputs.begin(), op->inputs.end());
    } else {
      outputs.push_back(id);
    }
  }
  return outputs;
}

Fusion with_parts_as_outputs(Fusion fusion) {
  fusion.outputs = parts_of_outputs(fusion);
  return without_unused(std::move(fusion));
}

Fusion with_parts_joined(Fusion fusion) {
  std::vector<ValueId> outputs;
  for (const Result& result : results(fusion)) {
    const ValueId first = result.outputs.front();
    if (place_of(fusion, first) == nullptr) {
      outputs.push_back(first);
      continue;
    }
    JF_REQUIRE(result.missing == 0, "[place] ", fusion.values[first].name, " (", print_type(fusion.values[first]),
               ") is a part of an array, ", print_type(Value{"", fusion.values[first].dtype, axes_of(result.shape)}),
               ", and the outputs of ", fusion.name,
               " behind it are not the rest; expected all parts of an array side by side among the outputs");
    const Value stated{unused_name(fusion), fusion.values[first].dtype, {}};
    outputs.push_back(append(fusion, OpKind::kConcat, result.outputs, Dims{{axis_of(fusion, result)}}, stated));
  }
  fusion.outputs = std::move(outputs);
  return fusion;
}

}  // namespace jf::ir
