#include "ir/append.h"

#include <utility>

#include "ir/infer.h"

namespace jf::ir {

ValueId append(Fusion& fusion, OpKind kind, std::vector<ValueId> inputs, Attribute attribute, const Value& stated,
               const std::string& label) {
  Value value = infer(fusion, kind, inputs, attribute, stated);
  value.name = stated.name;
  const auto id = static_cast<ValueId>(fusion.values.size());
  fusion.values.push_back(std::move(value));
  fusion.ops.push_back({kind, std::move(inputs), id, std::move(attribute), label});
  return id;
}

}  // namespace jf::ir
