#include "host/group_softmax.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "host/placement.h"
#include "ir/text.h"
#include "ir/unused.h"

namespace jf::host {
namespace {

using ir::Fusion;
using ir::ValueId;

// nested.softmax of x, as text: what the kernel computes.
std::string softmax_text(const grouped::GroupSoftmax& s) {
  const std::string groups = cat(s.groups), rows = cat(s.rows), columns = cat(s.columns);
  const auto type = [](std::string_view dtype, const std::string& axes) { return cat(dtype, "[", axes, "] = "); };
  const std::string of_groups = cat(groups, ",", columns), of_rows = cat(rows, ",", columns);
  const std::string same = cat("b", groups, ",b", columns), same_rows = cat("b", rows, ",b", columns);
  const std::string nested = cat(groups, ",ragged ", rows, " of own by 0,", columns);
  const std::string_view dtype = name(s.dtype);
  const bool wide = s.dtype == DType::kF32;
  std::string t = cat("fusion softmax(x: ", dtype, "[", of_rows, "], extents: s32[", groups, "]) -> (result) {\n");
  const auto add = [&](std::string_view value, const std::string& type, const std::string& op) {
    t += cat("  ", value, ": ", type, op, "\n");
  };
  const auto constant = [&](std::string_view value, std::string_view dtype, const std::string& number) {
    add(value, type(dtype, ""), cat("constant() {value=", number, "}"));
  };
  const std::string count = type("s32", groups), numbers = type("s32", cat("b", groups));
  // Where groups begin and how many rows they have, within the array; the group of each row.
  constant("none", "s32", "0");
  add("nones", numbers, "broadcast(none) {dims=[]}");
  add("not_negative", count, "max(nones, extents)");
  constant("rows", "s32", rows);
  add("all_rows", numbers, "broadcast(rows) {dims=[]}");
  add("clipped", count, "min(all_rows, not_negative)");
  add("ends", count, "scan_sum(clipped) {axis=0}");
  add("begins", count, "sub(ends, clipped)");
  add("starts", count, "min(begins, all_rows)");
  add("room", count, "sub(all_rows, starts)");
  add("own", count, "min(clipped, room)");
  add("row", type("s32", rows), "iota() {dims=[0]}");
  add("inside_ends", count, "min(ends, all_rows)");
  add("group", type("s32", rows), "search(inside_ends, row) {side=right}");
  constant("groups", "s32", groups);
  add("all_groups", type("s32", cat("b", rows)), "broadcast(groups) {dims=[]}");
  add("has_group", type("pred", rows), "lt(group, all_groups)");
  // The logarithm of each group's sum of powers.
  add("parts", type(dtype, nested), cat("partition(x, starts, own) {most=", rows, ", axis=0}"));
  if (!wide) add("wide_parts", type("f32", nested), "convert(parts)");
  const std::string of_parts = wide ? "parts" : "wide_parts";
  add("largest", type("f32", of_groups), cat("reduce_max(", of_parts, ") {dims=[1]}"));
  add("finite", type("pred", of_groups), "is_finite(largest)");
  constant("zero", "f32", "0");
  add("zeros", type("f32", same), "broadcast(zero) {dims=[]}");
  add("shift", type("f32", of_groups), "select(finite, largest, zeros)");
  add("group_of_row", type("s32", cat(rows, ",b", columns)), "broadcast(group) {dims=[0]}");
  add("has", type("pred", cat(rows, ",b", columns)), "broadcast(has_group) {dims=[0]}");
  add("zeros_of_rows", type("f32", same_rows), "broadcast(zero) {dims=[]}");
  add("one_shift", type("f32", cat(groups, ",b1,", columns)), "broadcast(shift) {dims=[0,2]}");
  add("shifts", type("f32", cat(groups, ",b ragged ", rows, " of own by 0,", columns)),
      cat("stretch(one_shift, own) {most=", rows, ", axis=1, by=[0]}"));
  add("distance", type("f32", nested), cat("sub(", of_parts, ", shifts)"));
  add("power", type("f32", nested), "exp(distance)");
  add("sum", type("f32", of_groups), "reduce_sum(power) {dims=[1]}");
  add("log_sum", type("f32", of_groups), "log(sum)");
  constant("infinity", "f32", "inf");
  add("infinities", type("f32", same), "broadcast(infinity) {dims=[]}");
  add("infinite", type("pred", of_groups), "eq(log_sum, infinities)");
  constant("not_a_number", "f32", "nan:7ff8000000000000");
  add("nans", type("f32", same), "broadcast(not_a_number) {dims=[]}");
  add("total", type("f32", of_groups), "select(infinite, nans, log_sum)");
  // Rows below both of their group; zeros behind the last one.
  const auto of_rows_group = [&](const std::string& value) {
    add(value + "_of_group", type("f32", of_rows),
        cat("take(", value, ", group_of_row) {axes=[0], limits=[", s.groups - 1,
            "], dims=[-1,1], starts=[0,0], strides=[1,1]}"));
    add(value + "_of_row", type("f32", of_rows), cat("select(has, ", value, "_of_group, zeros_of_rows)"));
  };
  of_rows_group("shift");
  of_rows_group("total");
  if (!wide) add("wide", type("f32", of_rows), "convert(x)");
  add("below", type("f32", of_rows), cat("sub(", wide ? "x" : "wide", ", shift_of_row)"));
  add("difference", type("f32", of_rows), "sub(below, total_of_row)");
  add("all_wanted", type("s32", ""), "reduce_sum(clipped) {dims=[0]}");
  add("used", type("s32", ""), "min(all_wanted, rows)");
  add("one_used", type("s32", "b1"), "broadcast(used) {dims=[]}");
  add("all_used", type("s32", cat("b", rows)), "broadcast(one_used) {dims=[0]}");
  add("is_used", type("pred", rows), "lt(row, all_used)");
  add("row_is_used", type("pred", cat(rows, ",b1")), "broadcast(is_used) {dims=[0]}");
  constant("one", "f32", "1");
  add("inside", type("pred", cat(rows, ",b", columns)), "broadcast(row_is_used) {dims=[0,1]}");
  add("ones", type("f32", same_rows), "broadcast(one) {dims=[]}");
  add("shown", type("f32", of_rows), "select(inside, difference, ones)");
  std::string made = "shown";
  if (!s.log) add("share", type("f32", of_rows), "exp(shown)"), made = "share";
  if (!wide) {
    add("narrow", type(dtype, of_rows), cat("convert(", made, ")"));
    constant("narrow_zero", dtype, "0");
    add("narrow_zeros", type(dtype, same_rows), "broadcast(narrow_zero) {dims=[]}");
  }
  add("result", type(dtype, of_rows),
      cat("select(inside, ", wide ? made : "narrow", ", ", wide ? "zeros_of_rows" : "narrow_zeros", ")"));
  return t + "}\n";
}

// Whether two values are computed alike from inputs, each of which stands for one of the other fusion's.
class Alike {
 public:
  Alike(const Fusion& pattern, const Fusion& fusion) : pattern_(pattern), fusion_(fusion) {}

  bool operator()(ValueId of_pattern, ValueId id) {
    if (const auto known = is_.find(of_pattern); known != is_.end()) return known->second == id;
    const ir::Value &a = pattern_.values[of_pattern], &b = fusion_.values[id];
    const ir::Op *first = ir::definition(pattern_, of_pattern), *second = ir::definition(fusion_, id);
    if (a.dtype != b.dtype || ir::shape(a) != ir::shape(b) || (first == nullptr) != (second == nullptr)) return false;
    if (first != nullptr) {
      if (first->kind != second->kind || first->attribute != second->attribute ||
          first->inputs.size() != second->inputs.size()) {
        return false;
      }
      for (size_t i = 0; i < first->inputs.size(); ++i) {
        if (!(*this)(first->inputs[i], second->inputs[i])) return false;
      }
    }
    is_[of_pattern] = id;
    return true;
  }
  ValueId at(ValueId of_pattern) const { return is_.at(of_pattern); }

 private:
  const Fusion &pattern_, &fusion_;
  std::map<ValueId, ValueId> is_;
};

std::string kernel_name(const Fusion& fusion) { return fusion.name + "_softmax"; }

}  // namespace

std::optional<FoundSoftmax> find_group_softmax(const ir::Fusion& given, const Tuning& tuning) {
  const Fusion fusion = ir::without_unused(given);
  if (fusion.inputs.size() != 2 || fusion.outputs.size() != 1) return std::nullopt;
  const ir::Value& result = fusion.values[fusion.outputs[0]];
  const ir::Value* extents = nullptr;
  for (const ValueId id : fusion.inputs) {
    const ir::Value& value = fusion.values[id];
    if (value.dtype == DType::kS32 && value.axes.size() == 1) extents = &value;
  }
  const bool is_nested = std::any_of(fusion.ops.begin(), fusion.ops.end(),
                                     [](const ir::Op& op) { return op.kind == ir::OpKind::kPartition; });
  const bool takes = result.dtype == DType::kF32 || result.dtype == DType::kBF16 || result.dtype == DType::kF16;
  if (!is_nested || extents == nullptr || !takes || result.axes.size() != 2 || ir::elements(result) == 0)
    return std::nullopt;
  const std::vector<int64_t> shape = ir::shape(result);
  for (const bool log : {false, true}) {
    const grouped::GroupSoftmax problem{result.dtype, log, shape[0], shape[1], extents->axes[0].extent};
    const Fusion pattern = ir::parse(softmax_text(problem));
    Alike alike(pattern, fusion);
    if (!alike(pattern.outputs[0], fusion.outputs[0])) continue;
    const grouped::SoftmaxConfig config =
        grouped::edited(grouped::choose_softmax(problem), tuning.of(kernel_name(fusion)));
    return FoundSoftmax{problem, config, alike.at(pattern.inputs[0]), alike.at(pattern.inputs[1])};
  }
  return std::nullopt;
}

Program softmax_program(const ir::Fusion& given, const FoundSoftmax& found, const Target& target) {
  const Fusion fusion = ir::without_unused(given);
  Program program;
  program.name = fusion.name;
  const auto bytes = [&](ValueId id) { return ir::elements(fusion.values[id]) * size_of(fusion.values[id].dtype); };
  for (const ValueId id : fusion.inputs) program.input_bytes.push_back(bytes(id));
  for (const ValueId id : fusion.outputs) program.output_bytes.push_back(bytes(id));
  program.segments = cat("segment 0: a hand-written kernel\n", ir::print(fusion));
  program.facts.push_back(kernel_facts(fusion));
  KernelFacts& facts = program.facts.back();
  facts.name = kernel_name(fusion);
  facts.strategy = "written";
  facts.reason = "softmax over the rows of groups: rows stay in shared memory until their group's sums are known";
  facts.parameters = grouped::print(found.config);
  Placement placement(fusion);
  const BufferRef words = placement.scratch(grouped::softmax_scratch_bytes(found.problem, found.config));
  program.steps.push_back(
      WrittenStep{kernel_name(fusion),
                  grouped::softmax_kernel(found.problem, found.config, target),
                  grouped::softmax_scalars(found.problem, found.config),
                  {placement.read(found.x), placement.read(found.extents), placement.write(fusion.outputs[0]), words}});
  placement.finish(program);
  return program;
}

}  // namespace jf::host
