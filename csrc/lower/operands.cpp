#include "lower/operands.h"

#include "base/error.h"
#include "base/integers.h"
#include "base/lists.h"
#include "lower/scan.h"

namespace jf::lower {

using ir::ValueId;
using loops::IndexPtr;
using loops::RegisterId;
using schedule::Domain;
using schedule::Parallel;

namespace {

bool same(const std::optional<loops::Cycle>& a, const std::optional<loops::Cycle>& b) {
  if (!a || !b) return !a && !b;
  return a->period == b->period && a->place_step == b->place_step && a->turn_step == b->turn_step &&
         graph::same(a->start, b->start);
}

// The other terms of a sum; null where the term is none of its.
IndexPtr without_term(const IndexPtr& sum, const IndexPtr& term) {
  if (graph::same(sum, term)) return loops::constant(0);
  if (sum->kind != loops::IndexKind::kAdd) return nullptr;
  if (IndexPtr rest = without_term(sum->a, term)) return add(std::move(rest), sum->b);
  IndexPtr rest = without_term(sum->b, term);
  return rest == nullptr ? nullptr : add(sum->a, std::move(rest));
}

}  // namespace

RegisterId Operands::new_register(DType dtype) {
  kernel_.registers.push_back(dtype);
  return static_cast<RegisterId>(kernel_.registers.size()) - 1;
}

std::vector<IndexRead> Operands::counts(const Item& item) {
  return counts_of(fusion_, schedule_.domains[item.value], indexer(item, false), item.op == nullptr, even_);
}

std::vector<IndexRead> Operands::starts(const Item& item) {
  const Item& made = item.op == nullptr && item_of_[item.value] >= 0 ? tree_.items[item_of_[item.value]] : item;
  const bool reads = made.op != nullptr && (made.op->kind == ir::OpKind::kPartition) == (item.op != nullptr);
  if (!reads) return {};
  return starts_of(fusion_, schedule_.domains[item.value], indexer(item, false), *made.op, even_);
}

graph::Indexer Operands::indexer(const Item& item, bool use_lane) const {
  Domain domain = schedule_.domains[item.value];
  // What is read as an index outside of the lanes is that of lane 0.
  const bool in_lanes = (lane_ || !use_lane) && !item.loops.empty() && item.loops.back() >= 0;
  if (!domain.loop.empty() && domain.loop.back().parallel == Parallel::kVector && !in_lanes) {
    domain.loop.back().parallel = Parallel::kSerial;
  }
  std::vector<IndexPtr> indices;
  for (int loop : item.loops) indices.push_back(variable(loop));
  graph::Indexer result(domain, std::move(indices));
  if (in_lanes && lane_ && use_lane) result.use_lane(*lane_);
  return result;
}

loops::Condition Operands::bounds(const Item& item, const graph::Indexer& at) {
  const bool folded = item.op == nullptr;
  loops::Condition condition, limits;
  const auto add_limit = [&](const graph::Position& index, loops::Below limit) {
    const IndexPtr others = lane_ && index.lane_step == 1 ? without_term(index.at, lane_->base) : nullptr;
    if (others != nullptr) limit.index = others;
    even_ = even_ && others != nullptr && (on_cpu_ || limits.empty());
    limits.push_back(std::move(limit));
  };
  const std::vector<IndexRead> counts = this->counts(item);
  std::vector<int> counted;
  for (const IndexRead& count : counts) {
    const graph::Position index = at.at_root(count.axis);
    const int variable = reads_.variable(count);
    condition.push_back({index.at, count.high, variable});
    counted.push_back(count.axis);
    if (index.lane_step != 0) add_limit(index, {loops::constant(0), count.high, variable});
  }
  for (const graph::Bound& bound : at.bounds(folded, counted)) {
    if (bound.index.lane_step == 0) {
      const bool always = bound.index.at->kind == loops::IndexKind::kConst && bound.index.at->value < bound.bound;
      if (!always) condition.push_back({bound.index.at, bound.bound});
      continue;
    }
    // All lanes or none, where they and the bound are in step.
    if (bound.index.lane_step == 1 && bound.bound % kernel_.width == 0 &&
        graph::multiple_of(bound.index.at) % kernel_.width == 0) {
      condition.push_back({bound.index.at, bound.bound});
      continue;
    }
    add_limit(bound.index, {loops::constant(0), bound.bound});
  }
  if (lane_) {
    even_ = even_ && (!any_item_ || same(limits, lane_limits_));
    lane_limits_ = std::move(limits);
    any_item_ = true;
  }
  return condition;
}

Operands::Place Operands::position(const graph::Indexer& indexer, const std::vector<int64_t>& weights) {
  const graph::Position p = indexer.position(weights);
  even_ = even_ && p.lane_step.has_value();
  return {p.at, p.lane_step.value_or(0)};
}

RegisterId Operands::load(ValueId id, const graph::Indexer& indexer, const schedule::Reading& from,
                          const loops::Condition& when, const std::vector<loops::Range>& within) {
  return load_at(id, indexer, from, loops::constant(0), when, within);
}

RegisterId Operands::load_at(ValueId id, const graph::Indexer& indexer, const schedule::Reading& from,
                             const IndexPtr& place, const loops::Condition& when,
                             const std::vector<loops::Range>& within, int64_t row_step,
                             const std::optional<loops::Rows>& rows) {
  auto [at, even_step, cycle] = indexer.position(from.weights);
  int64_t step = even_step.value_or(0);
  if (!on_cpu_ || rows || row_step != 0 || !within.empty()) cycle.reset();
  even_ = even_ && (even_step || cycle) && (step == 0 || !rows);
  step += row_step;
  at = loops::moved(add(place, std::move(at)), from.offset);
  for (const auto& [input, known] : loads_) {
    const bool done = input == id && known.lane_step == step && same(known.cycle, cycle) && graph::same(known.at, at) &&
                      same(known.when, when) && same(known.within, within);
    if (done) return known.result;
  }
  const RegisterId loaded = new_register(fusion_.values[id].dtype);
  loops::Load load{loaded, input_number_[id], at, step, {}, within};
  load.rows = rows;
  load.cycle = cycle;
  emit(std::move(load), when);
  loads_.push_back({id, {at, step, cycle, when, within, loaded}});
  return loaded;
}

std::vector<loops::Range> Operands::ranges(const Item& item, const schedule::Reading& from) {
  std::vector<loops::Range> result;
  bool in_lanes = false;
  for (const schedule::Reading::Range& range : from.ranges) {
    std::vector<int64_t> weights(from.weights.size(), 0);
    weights[range.axis] = 1;
    const graph::Position p = indexer(item, false).position(weights);
    auto fits = [&](int64_t bound) { return bound == kNoEnd || bound % kernel_.width == 0; };
    const bool together = p.lane_step == 0 || (p.lane_step == 1 && fits(range.begin) && fits(range.end) &&
                                               graph::multiple_of(p.at) % kernel_.width == 0);
    even_ = even_ && (together || (p.lane_step == 1 && !in_lanes));
    in_lanes = in_lanes || !together;
    result.push_back({p.at, range.begin, range.end, !together});
  }
  return result;
}

RegisterId Operands::load_shared(ValueId id, const graph::Indexer& indexer, const std::vector<int>& root_of,
                                 const loops::Condition& when) {
  const graph::Position p = in_shared(id, indexer, root_of);
  even_ = even_ && p.lane_step.has_value();
  const RegisterId result = new_register(fusion_.values[id].dtype);
  IndexPtr at = p.at;
  if (ring_of_[id] >= 0) {
    const loops::Ring& ring = kernel_.rings[ring_of_[id]];
    const IndexPtr stage = ring.stages > 1 ? loops::variable(ring.variable) : loops::constant(0);
    at = add(std::move(at), mul(stage, loops::constant(ring.stage_size)));
    const IndexPtr skew = this->skew(tree_.items[item_of_[id]], nullptr);
    if (skew != nullptr) at = add(std::move(at), skew);
  }
  emit(loops::Load{result, shared_of_[id], std::move(at), p.lane_step.value_or(0)}, when);
  return result;
}

RegisterId Operands::computed(ValueId id, const Item& user) {
  const Item& producer = tree_.items[item_of_[id]];
  const bool complete = array_of_[id] >= 0 && !is_complete_later(producer, schedule_);
  if (array_of_[id] < 0 || (complete && in_scope(producer, user))) return register_of_[id];
  const RegisterId result = new_register(fusion_.values[id].dtype);
  emit(loops::Get{result, array_of_[id], element(producer, user)});
  return result;
}

RegisterId Operands::operand(const Item& item, size_t i, const graph::Indexer& indexer, const loops::Condition& when) {
  const ValueId id = item.op->inputs[i];
  if (shared_of_[id] >= 0 && (ring_of_[id] >= 0 || !in_scope(tree_.items[item_of_[id]], item))) {
    return load_shared(id, indexer, roots_read(*item.op, i), when);
  }
  if (input_number_[id] < 0) return computed(id, item);
  const schedule::Reading from = schedule::reading(fusion_, *item.op, i);
  return load(id, indexer, from, when, ranges(item, from));
}

RegisterId Operands::take(const Item& item, const graph::Indexer& at, const loops::Condition& when) {
  const ir::Op& op = *item.op;
  const schedule::Reading from = schedule::reading(fusion_, op, 0);
  std::vector<loops::Step> steps;
  for (const schedule::Reading::Index& index : from.indices) {
    const ValueId id = op.inputs[index.operand];
    steps.push_back({operand(item, index.operand, at, when), index.limit, index.weight, differs_in_lanes(item, id)});
  }
  const auto [offset, step] = position(at, from.weights);
  const RegisterId result = new_register(fusion_.values[op.output].dtype);
  JF_CHECK(input_number_[op.inputs[0]] >= 0, fusion_.values[op.inputs[0]].name, " is not in memory");
  emit(
      loops::Load{
          result, input_number_[op.inputs[0]], loops::moved(offset, from.offset), step, {}, {}, std::move(steps)},
      when);
  return result;
}

RegisterId Operands::search(const Item& item, const graph::Indexer& at, const loops::Condition& when) {
  const ir::Op& op = *item.op;
  const ValueId table = op.inputs[0];
  JF_REQUIRE(input_number_[table] >= 0, "[lower] ", fusion_.values[op.output].name, " searches ",
             fusion_.values[table].name, ", which is not in memory; make it an input of the kernel");
  const auto [offset, step] = position(at, schedule::reading(fusion_, op, 0).weights);
  const RegisterId number = operand(item, 1, at, when), result = new_register(DType::kS32);
  const bool each = step != 0 || differs_in_lanes(item, op.inputs[1]);
  emit(loops::Search{result, input_number_[table], offset, step, fusion_.values[table].axes.back().extent, number,
                     std::get<ir::Search>(op.attribute).left, each},
       when);
  return result;
}

RegisterId Operands::partition(const Item& item, const graph::Indexer& at, const loops::Condition& when) {
  const ir::Op& op = *item.op;
  const ir::Value& from = fusion_.values[op.inputs[0]];
  IndexPtr place = loops::constant(0);
  std::optional<loops::Rows> rows;  // that lanes go along
  int64_t step = 0;
  const std::vector<IndexRead> starts = this->starts(item);
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t axis = partitioned_axis(op, i), stride = jf::strides(ir::shape(from))[axis];
    const int64_t last = from.axes[axis].extent - 1;
    const graph::Position own = at.at_root(starts[i].axis);
    const IndexPtr row = add(loops::variable(reads_.variable(starts[i])), own.at);
    place = add(std::move(place), mul(least(row, loops::constant(last)), loops::constant(stride)));
    if (own.lane_step == 0) continue;
    even_ = even_ && own.lane_step == 1 && !rows;
    rows = {row, last};
    step = stride;
  }
  return load_at(op.inputs[0], at, schedule::reading(fusion_, op, 0), place, when, {}, step, rows);
}

bool Operands::differs_in_lanes(const Item& item, ValueId operand) const {
  const std::vector<ir::Axis>& axes = fusion_.values[operand].axes;
  const graph::Indexer at = indexer(item, false);
  for (size_t a = 0; a < axes.size(); ++a) {
    std::vector<int64_t> weights(axes.size(), 0);
    weights[a] = 1;
    if (axes[a].kind == ir::AxisKind::kIteration && at.position(weights).lane_step != 0) return true;
  }
  return false;
}

}  // namespace jf::lower
