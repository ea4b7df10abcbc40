#include "ir/verify.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "ir/infer.h"
#include "ir/text.h"

namespace jf::ir {
namespace {

// Leaves room for what splits round up and for sums of sizes in 64 bits. Of an input or a result: no machine has more
// memory, and a kernel's loops can count so many.
constexpr int64_t kMaxBytes = int64_t{1} << 60, kMaxArrayBytes = int64_t{1} << 46;

void check_name(const std::string& name, std::set<std::string>& names) {
  JF_REQUIRE(name == identifier(name), "[verify] '", name, "' is not an identifier");
  JF_REQUIRE(names.insert(name).second, "[verify] the name '", name, "' is defined twice");
}

void check_size(const Value& value, int64_t most) {
  int64_t bytes = size_of(value.dtype);
  for (const Axis& axis : value.axes) {
    const bool fits = !__builtin_mul_overflow(bytes, std::max<int64_t>(axis.extent, 1), &bytes) && bytes <= most;
    JF_REQUIRE(fits, "[verify] ", value.name, " is ", print_type(value), "; expected at most ", most, " bytes");
  }
}

}  // namespace

void verify(const Fusion& fusion) {
  const auto count = static_cast<ValueId>(fusion.values.size());
  auto in_range = [&](ValueId id) { return id >= 0 && id < count; };
  std::set<std::string> names;
  check_name(fusion.name, names);
  for (const Value& value : fusion.values) check_size(value, kMaxBytes);
  std::vector<bool> defined(count, false);
  for (ValueId id : fusion.inputs) {
    JF_REQUIRE(in_range(id) && !defined[id], "[verify] input ", id, " is unknown or listed twice");
    check_name(fusion.values[id].name, names);
    check_size(fusion.values[id], kMaxArrayBytes);
    JF_REQUIRE(fusion.values[id].dtype != DType::kU4, "[verify] input ", fusion.values[id].name,
               " is u4, which is only stored; take bytes (u8) apart by shifts");
    JF_REQUIRE(ragged_axis(fusion.values[id]) < 0, "[verify] input ", fusion.values[id].name, " is ",
               print_type(fusion, fusion.values[id]), ", nested; make the array an input and partition it");
    defined[id] = true;
  }
  for (const Op& op : fusion.ops) {
    for (ValueId id : op.inputs) {
      JF_REQUIRE(in_range(id) && defined[id], "[verify] ", info(op.kind).name, " uses value ", id,
                 " before it is defined");
    }
    JF_REQUIRE(in_range(op.output) && !defined[op.output], "[verify] value ", op.output, " is defined twice");
    const Value& value = fusion.values[op.output];
    check_name(value.name, names);
    Value inferred = infer(fusion, op.kind, op.inputs, op.attribute, value);
    inferred.name = value.name;
    JF_REQUIRE(inferred == value, "[verify] ", value.name, " = ", info(op.kind).name, "(...) has type ",
               print_type(fusion, inferred), ", but the fusion says ", print_type(fusion, value));
    defined[op.output] = true;
  }
  std::vector<int> placed(count, 0);
  for (const Op& op : fusion.ops) {
    for (ValueId id : op.inputs) placed[id] += op.kind == OpKind::kConcat;
  }
  for (const Op& op : fusion.ops) {
    JF_REQUIRE(placed[op.output] < 2, "[verify] ", fusion.values[op.output].name,
               " is an operand of concat twice; place it once for each");
  }
  JF_REQUIRE(!contains(defined, false), "[verify] a value has no definition");
  JF_REQUIRE(!fusion.outputs.empty(), "[verify] the fusion has no output");
  std::set<ValueId> outputs;
  for (ValueId id : fusion.outputs) {
    JF_REQUIRE(in_range(id) && outputs.insert(id).second, "[verify] output ", id, " is unknown or listed twice");
    JF_REQUIRE(ragged_axis(fusion.values[id]) < 0, "[verify] output ", fusion.values[id].name, " is ",
               print_type(fusion, fusion.values[id]), ", nested, which no memory holds; combine it");
    check_size(fusion.values[id], kMaxArrayBytes);
  }
}

}  // namespace jf::ir
