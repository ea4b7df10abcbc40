#include "host/gathered_rows.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "grouped/cuda/hopper.h"
#include "host/joined_tails.h"
#include "ir/append.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "plan/extract.h"
#include "plan/grouped.h"
#include "plan/segment.h"

namespace jf::host {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::ValueId;

const Op* definition(const Fusion& fusion, ValueId value, OpKind kind) {
  const Op* op = ir::definition(fusion, value);
  return op == nullptr || op->kind != kind ? nullptr : op;
}

// The value with one element for each row that this one repeats along them.
std::optional<ValueId> of_rows(const Fusion& fusion, ValueId value) {
  const Op* op = definition(fusion, value, OpKind::kBroadcast);
  if (op == nullptr || std::get<ir::Dims>(op->attribute).dims != std::vector<int64_t>{0}) return std::nullopt;
  return op->inputs[0];
}

bool is_zero(const Fusion& fusion, ValueId value) {
  const Op* op = definition(fusion, value, OpKind::kBroadcast);
  if (op != nullptr) op = definition(fusion, op->inputs[0], OpKind::kConstant);
  if (op == nullptr) return false;
  const auto* number = std::get_if<double>(&std::get<ir::Constant>(op->attribute).value);
  return number != nullptr && *number == 0;
}

// Row r is that of `from` with the number index[r], brought into [0, last], or zeros where not inside[r].
struct Gather {
  ValueId from, index;
  std::optional<ValueId> inside;
  int64_t last;
};

std::optional<Gather> gather(const Fusion& whole, ValueId rows) {
  Gather found{};
  ValueId taken = rows;
  if (const Op* select = definition(whole, rows, OpKind::kSelect)) {
    found.inside = of_rows(whole, select->inputs[0]);
    if (!found.inside || !is_zero(whole, select->inputs[2])) return std::nullopt;
    taken = select->inputs[1];
  }
  const Op* op = definition(whole, taken, OpKind::kTake);
  if (op == nullptr || op->inputs.size() != 2) return std::nullopt;
  const auto& take = std::get<ir::Take>(op->attribute);
  const std::vector<int64_t> from = ir::shape(whole.values[op->inputs[0]]), to = ir::shape(whole.values[taken]);
  const ir::Take plain{{0}, {from[0] - 1}, {-1, 1}, {0, 0}, {1, 1}};
  if (from.size() != 2 || to.size() != 2 || from[1] != to[1] || take != plain) return std::nullopt;
  const auto index = of_rows(whole, op->inputs[1]);
  if (!index) return std::nullopt;
  found.from = op->inputs[0];
  found.index = *index;
  found.last = take.limits[0];
  return found;
}

// The value that has an s32 index, which is inside where it is in [0, last], as it is or unsigned: the bits of any
// other number are, unsigned, more than that.
std::optional<ValueId> given_numbers(const Fusion& whole, const Gather& found) {
  const Op* both = found.inside ? definition(whole, *found.inside, OpKind::kAnd) : nullptr;
  if (both == nullptr || whole.values[found.index].dtype != DType::kS32) return std::nullopt;
  const auto compares = [&](ValueId value, OpKind kind, int64_t with) {
    const Op* op = definition(whole, value, kind);
    return op != nullptr && op->inputs[0] == found.index && ir::is_number(whole, op->inputs[1], with);
  };
  if (!compares(both->inputs[0], OpKind::kLe, found.last) || !compares(both->inputs[1], OpKind::kGe, 0)) {
    return std::nullopt;
  }
  const auto has_bits = [&](ValueId value) {
    return whole.values[value].dtype == DType::kS32 || whole.values[value].dtype == DType::kU32;
  };
  ValueId number = found.index;
  for (const Op* op; (op = definition(whole, number, OpKind::kConvert)) && has_bits(op->inputs[0]);) {
    number = op->inputs[0];
  }
  return number;
}

// Ops at the end of a fusion.
class Appended {
 public:
  explicit Appended(Fusion& fusion) : fusion_(fusion) {}

  ValueId op(OpKind kind, std::vector<ValueId> inputs, ir::Attribute attribute = {}, ir::Value stated = {}) {
    stated.name = cat(fusion_.name, "_", fusion_.values.size());
    return ir::append(fusion_, kind, std::move(inputs), std::move(attribute), stated);
  }
  ValueId number(int64_t number, ValueId like) {
    const DType dtype = fusion_.values[like].dtype;
    const ValueId one = op(OpKind::kConstant, {}, ir::Constant{number}, {"", dtype, {}});
    return op(OpKind::kBroadcast, {one}, ir::Dims{}, {"", dtype, fusion_.values[like].axes});
  }
  ValueId as_s32(ValueId value) {
    if (fusion_.values[value].dtype == DType::kS32) return value;
    return op(OpKind::kConvert, {value}, {}, {"", DType::kS32, {}});
  }

 private:
  Fusion& fusion_;
};

plan::Segment numbers(const plan::Plan& plan, const plan::Segment& gathering, const Gather& found) {
  const Fusion& whole = plan.fusion;
  const std::set<ValueId> read(gathering.inputs.begin(), gathering.inputs.end());
  plan::Draft draft;
  draft.outputs = {found.index};
  if (found.inside && *found.inside != found.index) draft.outputs.push_back(*found.inside);
  draft.places.assign(draft.outputs.size(), {0});
  draft.ops = plan::ops_between(whole, read, draft.outputs);
  plan::Segment segment = plan::extract_fused(whole, draft, cat(gathering.fusion.name, "_numbers"));
  Fusion& fusion = segment.fusion;
  Appended then(fusion);
  ValueId index = fusion.outputs[0];
  if (size_of(fusion.values[index].dtype) < 4) index = then.as_s32(index);
  index = then.op(OpKind::kClamp, {then.number(0, index), index, then.number(found.last, index)});
  index = then.as_s32(index);
  if (found.inside) index = then.op(OpKind::kSelect, {fusion.outputs.back(), index, then.number(-1, index)});
  fusion.outputs = {index};
  ir::verify(fusion);
  segment.strategy = plan::Strategy::kPointwise;
  segment.reason = cat("numbers of the rows of ", whole.values[found.from].name, " that a grouped product takes");
  segment.outputs = gathering.outputs;
  return segment;
}

// The product that alone reads rows, as its lhs.
std::optional<size_t> product_of(const plan::Plan& plan, ValueId rows) {
  const std::vector<size_t> reading = readers(plan, rows);
  if (contains(plan.fusion.outputs, rows) || reading.size() != 1) return std::nullopt;
  const plan::Segment& product = plan.segments[reading[0]];
  if (product.strategy != plan::Strategy::kGrouped || product.inputs[0] != rows) return std::nullopt;
  if (std::count(product.inputs.begin(), product.inputs.end(), rows) != 1) return std::nullopt;
  return reading[0];
}

Flow number_flow(const std::string& value, int64_t rows, DType dtype = DType::kS32) {
  return {value, std::string(name(dtype)), {rows}, rows * 4};
}

}  // namespace

GatheringProducts find_gathers(const plan::Plan& plan, const Epilogues& epilogues, const Target& target) {
  GatheringProducts found;
  if (target.platform != Platform::kCuda) return found;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const plan::Segment& gathering = plan.segments[i];
    if (gathering.strategy != plan::Strategy::kPointwise || gathering.outputs.size() != 1) continue;
    const ValueId rows = gathering.outputs[0];
    const auto made = gather(plan.fusion, rows);
    if (!made || !contains(gathering.inputs, made->from)) continue;
    auto number = given_numbers(plan.fusion, *made);
    if (number && !contains(gathering.inputs, *number)) number.reset();
    const auto product = product_of(plan, rows);
    std::string why;
    if (product) {
      grouped::Problem problem = plan::grouped_problem(plan.segments[*product].fusion);
      problem.lhs_rows = made->last + 1;
      const auto end = std::find_if(epilogues.all.begin(), epilogues.all.end(),
                                    [&](const Epilogue& e) { return e.product == *product; });
      why = grouped::why_not_gather(problem, end == epilogues.all.end() ? nullptr : &end->functor, target);
    }
    if (product && why.empty()) {
      found.product_of[i] = *product;
      found.by_product[*product] =
          number ? GatheredRows{made->from, *number} : GatheredRows{made->from, rows, numbers(plan, gathering, *made)};
      continue;
    }
    CopiedRows copied{why};
    const std::vector<int64_t> shape = ir::shape(plan.fusion.values[rows]);
    const grouped::RowMove move{
        plan.fusion.values[rows].dtype, grouped::RowMove::Kind::kTake, made->last + 1, shape[0], shape[1], 1};
    if (number && grouped::why_not_move(move).empty()) {
      copied.move = move;
      copied.reads = {made->from, *number};
    }
    if (product || copied.move) found.copied[i] = std::move(copied);
  }
  return found;
}

bool copies_rows(const std::string& program, const std::string& target) {
  const Target for_target = parse_target(target);
  const plan::Plan plan = plan::plan(ir::parse(program), for_target);
  const auto copied = find_gathers(plan, find_epilogues(plan, for_target), for_target).copied;
  return std::any_of(copied.begin(), copied.end(), [](const auto& rows) { return !rows.second.why.empty(); });
}

KernelFacts gathering(const KernelFacts& product, const GatheredRows& rows, const ir::Fusion& whole) {
  KernelFacts facts = product;
  const ir::Value& from = whole.values[rows.from];
  const ir::Value& number = whole.values[rows.number];
  facts.reads[0] = {from.name, std::string(name(from.dtype)), ir::shape(from),
                    ir::elements(from) * size_of(from.dtype)};
  const DType dtype = rows.computed ? DType::kS32 : number.dtype;
  facts.reads.push_back(number_flow(number.name, product.reads[0].shape[0], dtype));
  facts.reason += cat("; it gathers its rows from ", from.name, " as it reads them");
  return facts;
}

KernelFacts numbering(const KernelFacts& numbers) {
  KernelFacts facts = numbers;
  facts.writes = {number_flow(numbers.writes[0].value, numbers.writes[0].shape[0])};
  return facts;
}

}  // namespace jf::host
