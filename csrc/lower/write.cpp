#include "lower/write.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/integers.h"
#include "graph/index.h"
#include "lower/guards.h"
#include "lower/index_reads.h"
#include "lower/loose.h"
#include "lower/places.h"
#include "lower/scan.h"
#include "schedule/axes.h"

namespace jf::lower {
namespace {

using ir::Fusion;
using ir::OpClass;
using ir::ValueId;
using loops::IndexPtr;
using loops::RegisterId;
using schedule::Domain;
using schedule::Parallel;
using schedule::Schedule;

class Writer : Places {
 public:
  Writer(const Fusion& fusion, const Schedule& schedule, const LoopTree& tree, loops::Kernel& kernel)
      : Places(fusion, schedule, tree, kernel),
        reads_(input_number_),
        register_of_(fusion.values.size(), -1),
        is_operand_(fusion.values.size(), false),
        loose_(loose_values(fusion)) {
    for (const ir::Op& op : fusion.ops) {
      for (ValueId id : op.inputs) is_operand_[id] = true;
    }
  }

  bool run() {
    std::vector<Guarded> statements = write(tree_.body, 0);
    if (!kernel_.rings.empty()) statements.insert(statements.begin(), {{}, {loops::Sync{}}, true});
    for (size_t ring = kernel_.rings.size(); ring-- > 0;) {
      statements.insert(statements.begin(), {{}, {loops::OpenRing{static_cast<int>(ring)}}, true});
    }
    const auto stores = [&](const Item& item) { return item.op == nullptr && is_bulk_store(item); };
    if (std::any_of(tree_.items.begin(), tree_.items.end(), stores)) {
      statements.push_back({{}, {loops::DrainBulk{}}, true});
    }
    kernel_.body = close(std::move(statements), threads_);
    return even_;
  }

 private:
  struct Loaded {
    IndexPtr at;
    int64_t lane_step;
    loops::Condition when;
    std::vector<loops::Range> within;
    RegisterId result;
  };

  RegisterId new_register(DType dtype) {
    kernel_.registers.push_back(dtype);
    return static_cast<RegisterId>(kernel_.registers.size()) - 1;
  }

  void sync() { statements_.push_back({{}, {loops::Sync{}}, true}); }

  void emit(std::vector<Guarded> statements) {
    for (Guarded& statement : statements) statements_.push_back(std::move(statement));
  }

  // The loops from `depth` on.
  std::vector<Guarded> write(const std::vector<Node>& nodes, size_t depth) {
    std::vector<Guarded> outer = std::move(statements_);
    statements_.clear();
    const size_t known = reads_.count();
    for (const Node& node : nodes) read_indices(node);
    append(nodes, depth);
    std::vector<Guarded> result = reads_.close(known, std::move(statements_), threads_);
    statements_ = std::move(outer);
    return result;
  }
  // What is known here of the counts and starts that the node's items need.
  void read_indices(const Node& node) {
    for (const Node& inner : node.body) read_indices(inner);
    if (node.item < 0) return;
    const Item& item = tree_.items[node.item];
    if (!schedule_.domains[item.value].ragged) return;
    for (const std::vector<IndexRead>& reads : {counts(item), starts(item)}) {
      for (const IndexRead& read : reads) reads_.offer(read, next_variable_, threads_);
    }
  }
  std::vector<IndexRead> counts(const Item& item) {
    return counts_of(fusion_, schedule_.domains[item.value], indexer(item, false), item.op == nullptr, even_);
  }
  std::vector<IndexRead> starts(const Item& item) {
    const Item& made = item.op == nullptr && item_of_[item.value] >= 0 ? tree_.items[item_of_[item.value]] : item;
    const bool reads = made.op != nullptr && (made.op->kind == ir::OpKind::kPartition) == (item.op != nullptr);
    if (!reads) return {};
    return starts_of(fusion_, schedule_.domains[item.value], indexer(item, false), *made.op, even_);
  }
  void append(const std::vector<Node>& nodes, size_t depth) {
    std::vector<ValueId> written;  // shared, since the threads met last
    std::vector<ValueId> filled;   // in bulk, not waited for yet
    bool drained = false;
    for (const Node& node : nodes) {
      std::erase_if(filled, [&](ValueId id) {
        const bool read = touches(node, id, true);
        if (read) statements_.push_back(await(id));
        return read;
      });
      if (node.item >= 0 && is_bulk(tree_.items[node.item])) {
        const Item& item = tree_.items[node.item];
        if (!is_circular(item)) emit(fill(item));
        filled.push_back(item.value);
        continue;
      }
      if (node.item >= 0 && is_bulk_store(tree_.items[node.item])) {
        const Item& item = tree_.items[node.item];
        if (item.op != nullptr) continue;  // the store copies
        emit(loops::FenceBulk{});
        sync();
        written.clear();
        statements_.push_back(bulk_store(item));
        continue;
      }
      // What was stored must have been read. Where the threads meet before they write, waiting can end there.
      if (!drained && overwrites_stored(node, depth)) {
        const bool met = meet_in(statements_);
        drained = true;
        statements_.insert(met ? statements_.begin() : statements_.end(), {{}, {loops::DrainBulk{}}, true});
        if (!met) sync();
      }
      if (std::any_of(written.begin(), written.end(), [&](ValueId id) { return touches(node, id, true); })) {
        sync();
        written.clear();
      }
      for (ValueId id = 0; id < static_cast<ValueId>(shared_of_.size()); ++id) {
        if (shared_of_[id] >= 0 && ring_of_[id] < 0 && touches(node, id, false)) written.push_back(id);
      }
      std::vector<int> here;
      items_with_home(node, depth, here);
      for (int number : here) declare(tree_.items[number]);
      if (node.item >= 0) {
        write_item(tree_.items[node.item]);
      } else {
        write_loop(node, depth);
      }
      for (int number : here) combine(tree_.items[number]);
    }
    JF_CHECK(filled.empty(), kernel_.name, " copies ", fusion_.values[filled.front()].name, " and does not read it");
  }
  // Items in the node that have an array and whose array lives in the node's parent. Declares the carries that live
  // there.
  void items_with_home(const Node& node, size_t depth, std::vector<int>& found) {
    if (node.item >= 0) {
      const Item& item = tree_.items[node.item];
      if (item.op != nullptr && array_of_[item.value] >= 0 && home(item) == depth) found.push_back(node.item);
      if (item.op == nullptr || carry_of_[item.value] < 0) return;
      const int carried = scan_loops(tree_, item, schedule_).carried;
      if (loops_before(item, carried) == depth) emit(loops::Declare{carry_of_[item.value], ir::fold_of(item.op->kind)});
    }
    for (const Node& inner : node.body) items_with_home(inner, depth, found);
  }

  void write_loop(const Node& node, size_t depth) {
    const Loop& loop = tree_.loops[node.loop];
    if (loop.parallel == Parallel::kVector) return write_vector(node, depth);
    if (loop.extent == 1) return append(node.body, depth + 1);
    const size_t loads = loads_.size();
    reads_.open_loop(node.loop);
    std::vector<Guarded> body = write(node.body, depth + 1), ahead;
    reads_.close_loop(node.loop);
    // The next iteration writes again what this one reads.
    if (is_serial(loop.parallel) && shares_inside(node) && !meet_after_reads(body)) {
      body.push_back({{}, {loops::Sync{}}, true});
    }
    for (const Item& item : tree_.items) {
      if (!is_circular(item, node.loop)) continue;
      JF_REQUIRE(loop.direction >= 0, "[lower] the stages of ", fusion_.values[item.value].name,
                 " are filled from the first iteration of a loop on, but a scan runs it from the last one; call ",
                 "circular_buffer with 1 stage, or inline it elsewhere");
      emit(fill_first(item));
      for (Guarded& copy : fill_ahead(item)) ahead.push_back(std::move(copy));
    }
    if (!ahead.empty()) {
      body = together(std::move(body), node.loop, threads_);
      body.insert(body.begin(), std::make_move_iterator(ahead.begin()), std::make_move_iterator(ahead.end()));
    }
    Guarded statement = enclose(std::move(body), node.loop, threads_);
    loads_.resize(loads);
    auto& inner = std::get<loops::For>(statement.stmt.node);
    inner.extent = loop.extent;
    inner.parallel = to_loops(loop.parallel);
    inner.reverse = loop.direction < 0;
    end_early(inner);
    statements_.push_back(std::move(statement));
  }
  void write_vector(const Node& node, size_t depth) {
    const Item& first = tree_.items[first_item(node)];
    std::vector<IndexPtr> indices;
    for (int l : first.loops) indices.push_back(variable(l));
    lane_ = {loops::variable(node.loop), graph::Indexer(schedule_.domains[first.value], indices).lane_base()};
    lane_limit_.reset();
    any_item_ = false;
    const size_t loads = loads_.size();
    Guarded statement = enclose(write(node.body, depth + 1), node.loop, threads_);
    loads_.resize(loads);
    loops::Body body = std::move(std::get<loops::For>(statement.stmt.node).body);
    statement.stmt = {
        loops::Vector{node.loop, lane_->base, lane_limit_.value_or(0), !lane_limit_.has_value(), std::move(body)}};
    statements_.push_back(std::move(statement));
    lane_.reset();
  }
  static int first_item(const Node& node) { return node.item >= 0 ? node.item : first_item(node.body.front()); }

  graph::Indexer indexer(const Item& item, bool use_lane) const {
    Domain domain = schedule_.domains[item.value];
    const bool in_lanes = lane_ && !item.loops.empty() && item.loops.back() >= 0;
    if (!domain.loop.empty() && domain.loop.back().parallel == Parallel::kVector && !in_lanes) {
      domain.loop.back().parallel = Parallel::kSerial;
    }
    std::vector<IndexPtr> indices;
    for (int loop : item.loops) indices.push_back(variable(loop));
    graph::Indexer result(domain, std::move(indices));
    if (in_lanes && use_lane) result.use_lane(*lane_);
    return result;
  }

  // Under which condition the item's iteration exists; also finds where its lanes end.
  loops::Condition bounds(const Item& item, const graph::Indexer& at) {
    const bool folded = item.op == nullptr;
    loops::Condition condition;
    std::optional<int64_t> limit;
    const std::vector<IndexRead> counts = this->counts(item);
    if (!counts.empty()) {
      const int axis = schedule_.domains[item.value].ragged->axis;
      const graph::Position index = at.at_root(axis);
      even_ = even_ && index.lane_step == 0;
      condition.push_back({index.at, counts[0].high, reads_.variable(counts[0])});
    }
    for (const graph::Bound& bound :
         at.bounds(folded, counts.empty() ? -1 : schedule_.domains[item.value].ragged->axis)) {
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
      const bool is_limit = lane_ && bound.index.lane_step == 1 && graph::same(bound.index.at, lane_->base);
      even_ = even_ && is_limit && !limit;
      limit = bound.bound;
    }
    if (lane_) {
      even_ = even_ && (!any_item_ || limit == lane_limit_);
      lane_limit_ = limit;
      any_item_ = true;
    }
    return condition;
  }

  template <class Statement>
  void emit(Statement statement, loops::Condition when = {}) {
    statements_.push_back({std::move(when), {std::move(statement)}});
  }

  struct Place {
    IndexPtr at;
    int64_t lane_step;
  };
  Place position(const graph::Indexer& indexer, const std::vector<int64_t>& weights) {
    const graph::Position p = indexer.position(weights);
    even_ = even_ && p.lane_step.has_value();
    return {p.at, p.lane_step.value_or(0)};
  }

  // An element of input `id`, at weights of the root axes.
  RegisterId load(ValueId id, const graph::Indexer& indexer, const schedule::Reading& from,
                  const loops::Condition& when, const std::vector<loops::Range>& within = {}) {
    return load_at(id, indexer, from, loops::constant(0), when, within);
  }
  RegisterId load_at(ValueId id, const graph::Indexer& indexer, const schedule::Reading& from, const IndexPtr& place,
                     const loops::Condition& when, const std::vector<loops::Range>& within) {
    auto [at, step] = position(indexer, from.weights);
    at = loops::moved(add(place, std::move(at)), from.offset);
    for (const auto& [input, known] : loads_) {
      const bool done = input == id && known.lane_step == step && graph::same(known.at, at) && same(known.when, when) &&
                        same(known.within, within);
      if (done) return known.result;
    }
    const RegisterId loaded = new_register(fusion_.values[id].dtype);
    emit(loops::Load{loaded, input_number_[id], at, step, {}, within}, when);
    loads_.push_back({id, {at, step, when, within, loaded}});
    return loaded;
  }
  // Where a reading finds an element: all lanes or none, where that is known, else each lane by itself.
  std::vector<loops::Range> ranges(const Item& item, const schedule::Reading& from) {
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
  RegisterId load_shared(ValueId id, const graph::Indexer& indexer, const std::vector<int>& root_of,
                         const loops::Condition& when) {
    const graph::Position p = in_shared(id, indexer, root_of);
    even_ = even_ && p.lane_step.has_value();
    const RegisterId result = new_register(fusion_.values[id].dtype);
    IndexPtr at = p.at;
    if (ring_of_[id] >= 0) {
      const loops::Ring& ring = kernel_.rings[ring_of_[id]];
      const IndexPtr stage = ring.stages > 1 ? loops::variable(ring.variable) : loops::constant(0);
      at = add(std::move(at), mul(stage, loops::constant(ring.stage_size)));
    }
    emit(loops::Load{result, shared_of_[id], std::move(at), p.lane_step.value_or(0)}, when);
    return result;
  }

  RegisterId computed(ValueId id, const Item& user) {
    const Item& producer = tree_.items[item_of_[id]];
    const bool complete = array_of_[id] >= 0 && !is_complete_later(producer, schedule_);
    if (array_of_[id] < 0 || (complete && in_scope(producer, user))) return register_of_[id];
    const RegisterId result = new_register(fusion_.values[id].dtype);
    emit(loops::Get{result, array_of_[id], element(producer, user)});
    return result;
  }
  RegisterId operand(const Item& item, size_t i, const graph::Indexer& indexer, const loops::Condition& when) {
    const ValueId id = item.op->inputs[i];
    if (shared_of_[id] >= 0 && (ring_of_[id] >= 0 || !in_scope(tree_.items[item_of_[id]], item))) {
      return load_shared(id, indexer, roots_read(*item.op, i), when);
    }
    if (input_number_[id] < 0) return computed(id, item);
    const schedule::Reading from = schedule::reading(fusion_, *item.op, i);
    return load(id, indexer, from, when, ranges(item, from));
  }

  RegisterId take(const Item& item, const graph::Indexer& at, const loops::Condition& when) {
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
  // A row that begins where memory says, or the last one.
  RegisterId partition(const Item& item, const graph::Indexer& at, const loops::Condition& when) {
    const ir::Op& op = *item.op;
    const schedule::Ragged& ragged = *schedule_.domains[item.value].ragged;
    const ir::Value& from = fusion_.values[op.inputs[0]];
    const size_t axis = std::get<ir::Nest>(op.attribute).axis;
    const int64_t stride = graph::strides(ir::shape(from))[axis];
    const IndexPtr row = add(loops::variable(reads_.variable(starts(item)[0])), at.at_root(ragged.axis).at);
    const IndexPtr place = mul(least(row, loops::constant(from.axes[axis].extent - 1)), loops::constant(stride));
    return load_at(op.inputs[0], at, schedule::reading(fusion_, op, 0), place, when, {});
  }
  RegisterId search(const Item& item, const graph::Indexer& at, const loops::Condition& when) {
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
  // Whether the lanes of an item read different elements of an operand with the same axes.
  bool differs_in_lanes(const Item& item, ValueId operand) const {
    const std::vector<ir::Axis>& axes = fusion_.values[operand].axes;
    const graph::Indexer at = indexer(item, false);
    for (size_t a = 0; a < axes.size(); ++a) {
      std::vector<int64_t> weights(axes.size(), 0);
      weights[a] = 1;
      if (axes[a].kind == ir::AxisKind::kIteration && at.position(weights).lane_step != 0) return true;
    }
    return false;
  }

  void write_item(const Item& item) {
    const graph::Indexer at = indexer(item, true);
    const loops::Condition when = bounds(item, indexer(item, false));
    if (item.op == nullptr) return store(item, at, when);
    const ir::Op& op = *item.op;
    std::vector<RegisterId> operands;
    if (op.kind == ir::OpKind::kTake) {
      operands.push_back(take(item, at, when));
    } else if (op.kind == ir::OpKind::kPartition) {
      operands.push_back(partition(item, at, when));
    } else if (op.kind == ir::OpKind::kSearch) {
      operands.push_back(search(item, at, when));
    } else {
      // Of those that make and leave nested values the others are indices.
      const bool nests = op.kind == ir::OpKind::kStretch || op.kind == ir::OpKind::kCombine;
      for (size_t i = 0; i < (nests ? 1 : op.inputs.size()); ++i) operands.push_back(operand(item, i, at, when));
    }
    RegisterId& result = register_of_[op.output];
    const DType own = fusion_.values[op.output].dtype;
    switch (ir::info(op.kind).op_class) {
      case OpClass::kSearch:
      case OpClass::kView: result = operands[0]; break;  // the same element, at the same iteration
      case OpClass::kIota: {
        std::vector<int64_t> weights(fusion_.values[op.output].axes.size(), 0);
        weights[std::get<ir::Dims>(op.attribute).dims[0]] = 1;
        const auto [index, step] = position(at, weights);
        result = new_register(own);
        emit(loops::FromIndex{result, index, step});
        break;
      }
      case OpClass::kConstant:
      case OpClass::kPointwise: {
        if (rounds_at_store(op)) {
          result = operands[0];
          break;
        }
        const DType from = op.inputs.empty() ? own : fusion_.values[op.inputs[0]].dtype;
        result = new_register(own);
        emit(loops::Compute{result, op.kind, std::move(operands), op.attribute, from, op.label, loose_[op.output]});
        break;
      }
      case OpClass::kReduce:
        emit(loops::Accumulate{array_of_[op.output], element(item, item), ir::fold_of(op.kind), operands[0]}, when);
        return;
      case OpClass::kScan: {
        const ScanLoops along = scan_loops(tree_, item, schedule_);
        if (along.together) {
          emit(loops::Set{array_of_[op.output], element(item, item), operands[0], true}, when);
          return;
        }
        result = operands[0];
        if (along.carried < 0 && !along.lanes) break;
        result = new_register(own);
        emit(loops::Scan{result, carry_of_[op.output], element(item, item, along.beside), ir::fold_of(op.kind),
                         std::get<ir::Scan>(op.attribute).reverse, along.lanes, operands[0]},
             when);
        break;
      }
      case OpClass::kConcat: JF_CHECK(false, "a concat in a generated kernel");
      case OpClass::kGrouped: JF_CHECK(false, "a grouped product in a generated kernel");
    }
    if (shared_of_[op.output] >= 0) {
      const auto [offset, step] = position(at, storage_of(item).weights);
      emit(loops::Store{shared_of_[op.output], offset, step, result}, when);
    }
    if (array_of_[op.output] >= 0) emit(loops::Set{array_of_[op.output], element(item, item), result});
  }

  // A store rounds what it stores: a conversion that is only stored would round twice.
  bool rounds_at_store(const ir::Op& op) const {
    if (op.kind != ir::OpKind::kConvert || shared_of_[op.output] >= 0 || array_of_[op.output] >= 0) return false;
    const DType from = fusion_.values[op.inputs[0]].dtype, to = fusion_.values[op.output].dtype;
    return compute_dtype(to) != to && compute_dtype(from) == compute_dtype(to) && !is_operand_[op.output];
  }

  void declare(const Item& item) {
    loops::Declare statement{array_of_[item.value], std::nullopt};
    if (is_complete_later(item, schedule_)) statement.fill = ir::fold_of(item.op->kind);
    emit(statement);
  }
  void combine(const Item& item) {
    if (!is_complete_later(item, schedule_)) return;
    loops::Combine statement{{array_of_[item.value]}, ir::fold_of(item.op->kind), false, false, false};
    const schedule::AxisTree axes = schedule::replay(schedule_.domains[item.value], fusion_.values[item.value].name);
    for (size_t p = 0; p < item.loops.size(); ++p) {
      const int node = axes.loop[p];
      if ((!axes.reduced[node] && axes.scanned[node] == 0) || item.loops[p] < 0) continue;
      const auto& [extent, parallel, direction] = tree_.loops[item.loops[p]];
      statement.lanes = statement.lanes || parallel == Parallel::kVector;
      statement.threads = statement.threads || (parallel == Parallel::kThread && extent > 1);
      statement.threads_y = statement.threads_y || (parallel == Parallel::kThreadY && extent > 1);
    }
    if (!statement.lanes && !statement.threads && !statement.threads_y) return;
    const bool meets = statement.threads || statement.threads_y;
    for (int l = 0; meets && l < item.shared; ++l) {
      if (item.loops[l] < 0 || !is_thread(tree_.loops[item.loops[l]].parallel)) continue;
      const auto& [extent, parallel, direction] = tree_.loops[item.loops[l]];
      JF_REQUIRE(extent == extent_of(tree_, parallel), "[lower] ", fusion_.values[item.value].name,
                 is_fold(item) ? " is folded" : " is scanned", " over threads inside of a ", name(parallel),
                 " loop of ", extent, " iterations, but ", extent_of(tree_, parallel),
                 " threads run; give all such loops one extent");
    }
    if (is_scan(item)) return scan_threads(item, statement);
    // The threads meet once for folds that follow each other.
    auto* last = statements_.empty() ? nullptr : std::get_if<loops::Combine>(&statements_.back().stmt.node);
    auto dtype = [&](const loops::Combine& c) { return compute_dtype(kernel_.arrays[c.arrays[0]].dtype); };
    const bool together = last != nullptr && meets && last->op == statement.op && last->lanes == statement.lanes &&
                          last->threads == statement.threads && last->threads_y == statement.threads_y &&
                          dtype(*last) == dtype(statement);
    if (together) return last->arrays.push_back(array_of_[item.value]);
    statements_.push_back({{}, {std::move(statement)}, meets});
  }
  void scan_threads(const Item& item, const loops::Combine& over) {
    const ScanLoops along = scan_loops(tree_, item, schedule_);
    const schedule::AxisTree axes = schedule::replay(schedule_.domains[item.value], fusion_.values[item.value].name);
    for (int position : kept_positions(item)) {
      const int node = axes.loop[position];
      JF_CHECK(axes.scanned[node] != 0 || axes.extents[node] == 1, fusion_.values[item.value].name,
               " is scanned by threads with elements beside each other");
    }
    loops::ScanThreads scan{over.arrays[0], carry_of_[item.value], element(item, item, along.beside), over.op};
    scan.reverse = std::get<ir::Scan>(item.op->attribute).reverse;
    scan.lanes = over.lanes;
    scan.threads = over.threads;
    scan.threads_y = over.threads_y;
    scan.run = along.run;
    statements_.push_back({{}, {std::move(scan)}, true});
  }

  void store(const Item& item, const graph::Indexer& at, loops::Condition when) {
    const std::vector<int> nodes = schedule::axis_nodes(fusion_, schedule_.domains[item.value], item.value);
    const schedule::Writing to = schedule::writing(fusion_, item.value);
    std::vector<int64_t> weights;
    for (size_t a = 0; a < nodes.size(); ++a) {
      weights.resize(std::max<size_t>(weights.size(), nodes[a] + 1), 0);
      weights[nodes[a]] = to.weights[a];
    }
    const RegisterId value =
        input_number_[item.value] >= 0 ? load(item.value, at, {weights}, when) : computed(item.value, item);
    const auto [position_of_item, step] = position(at, weights);
    IndexPtr offset = add(position_of_item, loops::constant(to.offset));
    for (const IndexRead& start : starts(item)) {
      const int axis = schedule_.domains[item.value].ragged->axis;
      const IndexPtr first = loops::variable(reads_.variable(start));
      offset = add(mul(first, loops::constant(weights[axis])), std::move(offset));
      when.push_back({add(first, at.at_root(axis).at), start.high});
    }
    loops::Stmt statement{loops::Store{static_cast<int>(fusion_.inputs.size() + item.output), offset, step, value}};
    // Where all tasks, blocks or threads have the same element, the first one stores it.
    for (Parallel parallel :
         {Parallel::kThread, Parallel::kThreadY, Parallel::kBlock, Parallel::kBlockY, Parallel::kTask}) {
      if (extent_of(tree_, parallel) == 1 || runs_on(item, parallel)) continue;
      loops::Body body;
      body.push_back(std::move(statement));
      statement = {loops::For{next_variable_++, 1, to_loops(parallel), std::move(body)}};
    }
    statements_.push_back({when, std::move(statement)});
  }
  bool runs_on(const Item& item, Parallel parallel) const {
    return std::any_of(item.loops.begin(), item.loops.end(),
                       [&](int loop) { return loop >= 0 && tree_.loops[loop].parallel == parallel; });
  }

  IndexReads reads_;
  std::vector<RegisterId> register_of_;            // by value
  std::vector<bool> is_operand_;                   // by value
  std::vector<bool> loose_;                        // by value: see loops::Compute
  std::vector<Guarded> statements_;                // of the body being written
  std::vector<std::pair<ValueId, Loaded>> loads_;  // in scope
  std::optional<graph::LaneVariable> lane_;        // inside a Vector
  std::optional<int64_t> lane_limit_;
  bool any_item_ = false;
  bool even_ = true;
};

}  // namespace

bool write(const Fusion& fusion, const Schedule& schedule, const LoopTree& tree, loops::Kernel& kernel) {
  return Writer(fusion, schedule, tree, kernel).run();
}

}  // namespace jf::lower
