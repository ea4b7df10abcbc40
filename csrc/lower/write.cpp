#include "lower/write.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "graph/index.h"
#include "lower/guards.h"
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

loops::Parallel to_loops(Parallel parallel) {
  switch (parallel) {
    case Parallel::kSerial:
    case Parallel::kVector: return loops::Parallel::kSerial;  // lanes have no loop
    case Parallel::kUnroll: return loops::Parallel::kUnroll;
    case Parallel::kTask: return loops::Parallel::kTask;
    case Parallel::kBlock: return loops::Parallel::kBlock;
    case Parallel::kBlockY: return loops::Parallel::kBlockY;
    case Parallel::kThread: return loops::Parallel::kThread;
    case Parallel::kThreadY: return loops::Parallel::kThreadY;
  }
  throw InternalError(__FILE__, __LINE__, "parallel type", "");
}

bool is_thread(Parallel parallel) { return parallel == Parallel::kThread || parallel == Parallel::kThreadY; }
bool is_serial(Parallel parallel) { return parallel == Parallel::kSerial || parallel == Parallel::kUnroll; }

class Writer {
 public:
  Writer(const Fusion& fusion, const Schedule& schedule, const LoopTree& tree, loops::Kernel& kernel)
      : fusion_(fusion),
        schedule_(schedule),
        tree_(tree),
        kernel_(kernel),
        next_variable_(static_cast<int>(tree.loops.size())),
        item_of_(fusion.values.size(), -1),
        input_number_(fusion.values.size(), -1),
        register_of_(fusion.values.size(), -1),
        array_of_(fusion.values.size(), -1),
        shared_of_(fusion.values.size(), -1) {
    for (size_t i = 0; i < fusion.inputs.size(); ++i) input_number_[fusion.inputs[i]] = static_cast<int>(i);
    for (size_t i = 0; i < tree.items.size(); ++i) {
      if (tree.items[i].op != nullptr) item_of_[tree.items[i].value] = static_cast<int>(i);
    }
    for (size_t loop = 0; loop < tree.loops.size(); ++loop) {
      if (is_thread(tree.loops[loop].parallel)) threads_.insert(static_cast<int64_t>(loop));
    }
    make_arrays();
  }

  bool run() {
    std::vector<Guarded> statements = write(tree_.body, 0);
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

  IndexPtr variable(int loop) const {
    return loop < 0 || tree_.loops[loop].extent == 1 ? loops::constant(0) : loops::variable(loop);
  }
  RegisterId new_register(DType dtype) {
    kernel_.registers.push_back(dtype);
    return static_cast<RegisterId>(kernel_.registers.size()) - 1;
  }

  // A value whose user stands outside of the loops it is computed in is kept in an array.
  void make_arrays() {
    std::vector<bool> kept(fusion_.values.size(), false);
    for (const Item& item : tree_.items) {
      if (is_fold(item)) kept[item.value] = true;
      if (item.op == nullptr) continue;
      for (ValueId id : item.op->inputs) {
        if (item_of_[id] >= 0 && !in_scope(tree_.items[item_of_[id]], item)) kept[id] = true;
      }
    }
    for (const Item& item : tree_.items) {
      if (item.op == nullptr || !kept[item.value]) continue;
      const ir::Value& value = fusion_.values[item.value];
      if (is_shared(item.value)) {
        shared_of_[item.value] = static_cast<int>(kernel_.buffers.size());
        kernel_.buffers.push_back({value.name, value.dtype, true, storage_of(item).elements});
        continue;
      }
      int64_t size = 1;
      for (int position : kept_positions(item)) size *= tree_.loops[item.loops[position]].extent;
      array_of_[item.value] = static_cast<int>(kernel_.arrays.size());
      kernel_.arrays.push_back({value.name, value.dtype, size});
    }
  }
  bool is_shared(ValueId id) const { return schedule_.domains[id].memory == schedule::Memory::kShared; }

  // How a shared value lies in memory.
  struct Storage {
    std::vector<int64_t> weights;  // by node of its tree
    int64_t elements;
  };
  Storage storage_of(const Item& item) const {
    const Domain& domain = schedule_.domains[item.value];
    const schedule::AxisTree axes = schedule::replay(domain, fusion_.values[item.value].name);
    std::vector<int> nodes = domain.storage;
    if (nodes.empty()) {
      for (size_t p = item.shared; p < item.loops.size(); ++p) {
        const int loop = item.loops[p];
        if (loop >= 0 && !axes.reduced[axes.loop[p]]) nodes.push_back(axes.loop[p]);
      }
    }
    Storage storage{std::vector<int64_t>(axes.extents.size(), 0), 1};
    for (size_t n = nodes.size(); n-- > 0;) {
      storage.weights[nodes[n]] = storage.elements;
      storage.elements *= axes.extents[nodes[n]];
      if (n + 1 == nodes.size() && n > 0) storage.elements += domain.pad;
    }
    return storage;
  }
  // Whether a node computes or reads a shared value.
  bool touches(const Node& node, ValueId shared, bool reads) const {
    if (node.item < 0) {
      return std::any_of(node.body.begin(), node.body.end(),
                         [&](const Node& inner) { return touches(inner, shared, reads); });
    }
    const Item& item = tree_.items[node.item];
    if (!reads) return item.op != nullptr && item.value == shared;
    if (item.op == nullptr) return item.value == shared;
    return std::find(item.op->inputs.begin(), item.op->inputs.end(), shared) != item.op->inputs.end();
  }
  // Whether a node both computes and reads some shared value.
  bool shares_inside(const Node& node) const {
    for (ValueId id = 0; id < static_cast<ValueId>(shared_of_.size()); ++id) {
      if (shared_of_[id] >= 0 && touches(node, id, false) && touches(node, id, true)) return true;
    }
    return false;
  }
  void sync() { statements_.push_back({{}, {loops::Sync{}}, true}); }

  static bool in_scope(const Item& producer, const Item& user) {
    const std::vector<int> a = path(producer), b = path(user);
    return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
  }
  // Positions of the loops that an array has an element for each iteration of.
  std::vector<int> kept_positions(const Item& item) const {
    const std::vector<bool> reduced = reduced_loops(item);
    std::vector<int> positions;
    for (size_t p = item.shared; p < item.loops.size(); ++p) {
      const int loop = item.loops[p];
      if (loop >= 0 && !reduced[p] && is_serial(tree_.loops[loop].parallel)) positions.push_back(static_cast<int>(p));
    }
    return positions;
  }
  std::vector<bool> reduced_loops(const Item& item) const {
    const schedule::AxisTree axes = schedule::replay(schedule_.domains[item.value], fusion_.values[item.value].name);
    std::vector<bool> reduced;
    for (int node : axes.loop) reduced.push_back(axes.reduced[node]);
    return reduced;
  }
  // The element of a kept value that belongs to an iteration of `user`.
  IndexPtr element(const Item& kept, const Item& user) const {
    IndexPtr at = loops::constant(0);
    for (int position : kept_positions(kept)) {
      at = add(mul(at, loops::constant(tree_.loops[kept.loops[position]].extent)), variable(user.loops[position]));
    }
    return at;
  }
  // How many loops around the place where an array lives.
  size_t home(const Item& item) const {
    return static_cast<size_t>(
        std::count_if(item.loops.begin(), item.loops.begin() + item.shared, [](int loop) { return loop >= 0; }));
  }

  // The loops from `depth` on.
  std::vector<Guarded> write(const std::vector<Node>& nodes, size_t depth) {
    std::vector<Guarded> outer = std::move(statements_);
    statements_.clear();
    append(nodes, depth);
    std::vector<Guarded> result = std::move(statements_);
    statements_ = std::move(outer);
    return result;
  }
  void append(const std::vector<Node>& nodes, size_t depth) {
    std::vector<ValueId> written;  // shared, since the threads met last
    for (const Node& node : nodes) {
      if (std::any_of(written.begin(), written.end(), [&](ValueId id) { return touches(node, id, true); })) {
        sync();
        written.clear();
      }
      for (ValueId id = 0; id < static_cast<ValueId>(shared_of_.size()); ++id) {
        if (shared_of_[id] >= 0 && touches(node, id, false)) written.push_back(id);
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
  }
  // Items in the node that have an array and whose array lives in the node's parent.
  void items_with_home(const Node& node, size_t depth, std::vector<int>& found) const {
    if (node.item >= 0) {
      const Item& item = tree_.items[node.item];
      if (item.op != nullptr && array_of_[item.value] >= 0 && home(item) == depth) found.push_back(node.item);
    }
    for (const Node& inner : node.body) items_with_home(inner, depth, found);
  }

  void write_loop(const Node& node, size_t depth) {
    const Loop& loop = tree_.loops[node.loop];
    if (loop.parallel == Parallel::kVector) return write_vector(node, depth);
    if (loop.extent == 1) return append(node.body, depth + 1);
    const size_t loads = loads_.size();
    std::vector<Guarded> body = write(node.body, depth + 1);
    // The next iteration writes again what this one reads.
    if (is_serial(loop.parallel) && shares_inside(node)) body.push_back({{}, {loops::Sync{}}, true});
    Guarded statement = enclose(std::move(body), node.loop, threads_);
    loads_.resize(loads);
    auto& inner = std::get<loops::For>(statement.stmt.node);
    inner.extent = loop.extent;
    inner.parallel = to_loops(loop.parallel);
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
  loops::Condition bounds(const graph::Indexer& at, bool folded) {
    loops::Condition condition;
    std::optional<int64_t> limit;
    for (const graph::Bound& bound : at.bounds(folded)) {
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
    auto [at, step] = position(indexer, from.weights);
    at = loops::moved(std::move(at), from.offset);
    for (const auto& [input, known] : loads_) {
      const bool same = input == id && known.lane_step == step && graph::same(known.at, at) &&
                        same_condition(known.when, when) && same_ranges(known.within, within);
      if (same) return known.result;
    }
    const RegisterId loaded = new_register(fusion_.values[id].dtype);
    emit(loops::Load{loaded, input_number_[id], at, step, {}, within}, when);
    loads_.push_back({id, {at, step, when, within, loaded}});
    return loaded;
  }
  static bool same_ranges(const std::vector<loops::Range>& a, const std::vector<loops::Range>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const loops::Range& x, const loops::Range& y) {
      return x.begin == y.begin && x.end == y.end && x.lanes == y.lanes && graph::same(x.index, y.index);
    });
  }
  // Where a reading finds an element: all lanes or none, where that is known, else each lane by itself.
  std::vector<loops::Range> ranges(const Item& item, const schedule::Reading& from) {
    std::vector<loops::Range> result;
    bool in_lanes = false;
    for (const schedule::Reading::Range& range : from.ranges) {
      std::vector<int64_t> weights(from.weights.size(), 0);
      weights[range.axis] = 1;
      const graph::Position p = indexer(item, false).position(weights);
      auto fits = [&](int64_t bound) { return bound == schedule::kNoEnd || bound % kernel_.width == 0; };
      const bool together = p.lane_step == 0 || (p.lane_step == 1 && fits(range.begin) && fits(range.end) &&
                                                 graph::multiple_of(p.at) % kernel_.width == 0);
      even_ = even_ && (together || (p.lane_step == 1 && !in_lanes));
      in_lanes = in_lanes || !together;
      result.push_back({p.at, range.begin, range.end, !together});
    }
    return result;
  }
  static bool same_condition(const loops::Condition& a, const loops::Condition& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
      return x.second == y.second && graph::same(x.first, y.first);
    });
  }

  // What an operand or an output reads; `root_of`: for each root axis of the value, the user's that has its index.
  RegisterId load_shared(ValueId id, const graph::Indexer& indexer, const std::vector<int>& root_of,
                         const loops::Condition& when) {
    const Item& producer = tree_.items[item_of_[id]];
    const schedule::AxisTree axes = schedule::replay(schedule_.domains[id], fusion_.values[id].name);
    const std::optional<graph::Position> p = indexer.position(axes, storage_of(producer).weights, root_of);
    JF_REQUIRE(p.has_value(), "[lower] ", fusion_.values[id].name,
               " is stored over axes that its reader cuts unevenly; choose others by set_allocation");
    even_ = even_ && p->lane_step.has_value();
    const RegisterId result = new_register(fusion_.values[id].dtype);
    emit(loops::Load{result, shared_of_[id], p->at, p->lane_step.value_or(0)}, when);
    return result;
  }

  RegisterId computed(ValueId id, const Item& user) {
    const Item& producer = tree_.items[item_of_[id]];
    if (array_of_[id] < 0 || (!is_fold(producer) && in_scope(producer, user))) return register_of_[id];
    const RegisterId result = new_register(fusion_.values[id].dtype);
    emit(loops::Get{result, array_of_[id], element(producer, user)});
    return result;
  }
  RegisterId operand(const Item& item, size_t i, const graph::Indexer& indexer, const loops::Condition& when) {
    const ValueId id = item.op->inputs[i];
    const std::vector<int> axes = schedule::result_axes(fusion_, *item.op, i);
    if (shared_of_[id] >= 0 && !in_scope(tree_.items[item_of_[id]], item)) {
      const std::vector<int> nodes = schedule::axis_nodes(fusion_, schedule_.domains[id], id);
      std::vector<int> root_of(schedule_.domains[id].logical.size(), -1);
      for (size_t a = 0; a < axes.size(); ++a) root_of[nodes[a]] = axes[a];
      return load_shared(id, indexer, root_of, when);
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
    const loops::Condition when = bounds(indexer(item, false), item.op == nullptr);
    if (item.op == nullptr) return store(item, at, when);
    const ir::Op& op = *item.op;
    std::vector<RegisterId> operands;
    if (op.kind == ir::OpKind::kTake) {
      operands.push_back(take(item, at, when));
    } else {
      for (size_t i = 0; i < op.inputs.size(); ++i) operands.push_back(operand(item, i, at, when));
    }
    RegisterId& result = register_of_[op.output];
    const DType own = fusion_.values[op.output].dtype;
    switch (ir::info(op.kind).op_class) {
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
        const DType from = op.inputs.empty() ? own : fusion_.values[op.inputs[0]].dtype;
        result = new_register(own);
        emit(loops::Compute{result, op.kind, std::move(operands), op.attribute, from, op.label});
        break;
      }
      case OpClass::kReduce:
        emit(loops::Accumulate{array_of_[op.output], element(item, item), ir::fold_of(op.kind), operands[0]}, when);
        return;
      case OpClass::kConcat: JF_CHECK(false, "a concat in a generated kernel");
      case OpClass::kGrouped: JF_CHECK(false, "a grouped product in a generated kernel");
    }
    if (shared_of_[op.output] >= 0) {
      const auto [offset, step] = position(at, storage_of(item).weights);
      emit(loops::Store{shared_of_[op.output], offset, step, result}, when);
    }
    if (array_of_[op.output] >= 0) emit(loops::Set{array_of_[op.output], element(item, item), result});
  }

  void declare(const Item& item) {
    loops::Declare statement{array_of_[item.value], std::nullopt};
    if (is_fold(item)) statement.fill = ir::fold_of(item.op->kind);
    emit(statement);
  }
  void combine(const Item& item) {
    if (!is_fold(item)) return;
    loops::Combine statement{array_of_[item.value], ir::fold_of(item.op->kind), false, false, false};
    const std::vector<bool> reduced = reduced_loops(item);
    for (size_t p = 0; p < item.loops.size(); ++p) {
      if (!reduced[p] || item.loops[p] < 0) continue;
      const auto& [extent, parallel] = tree_.loops[item.loops[p]];
      statement.lanes = statement.lanes || parallel == Parallel::kVector;
      statement.threads = statement.threads || (parallel == Parallel::kThread && extent > 1);
      statement.threads_y = statement.threads_y || (parallel == Parallel::kThreadY && extent > 1);
    }
    if (!statement.lanes && !statement.threads && !statement.threads_y) return;
    const bool meets = statement.threads || statement.threads_y;
    for (int l = 0; meets && l < item.shared; ++l) {
      if (item.loops[l] < 0 || !is_thread(tree_.loops[item.loops[l]].parallel)) continue;
      const auto& [extent, parallel] = tree_.loops[item.loops[l]];
      JF_REQUIRE(extent == extent_of(tree_, parallel), "[lower] ", fusion_.values[item.value].name,
                 " is folded over threads inside of a ", name(parallel), " loop of ", extent, " iterations, but ",
                 extent_of(tree_, parallel), " threads run; give all such loops one extent");
    }
    statements_.push_back({{}, {statement}, meets});
  }

  void store(const Item& item, const graph::Indexer& at, const loops::Condition& when) {
    const std::vector<int> nodes = schedule::axis_nodes(fusion_, schedule_.domains[item.value], item.value);
    const schedule::Storage to = schedule::storage(fusion_, item.value);
    std::vector<int64_t> weights;
    for (size_t a = 0; a < nodes.size(); ++a) {
      weights.resize(std::max<size_t>(weights.size(), nodes[a] + 1), 0);
      weights[nodes[a]] = to.weights[a];
    }
    const RegisterId value =
        input_number_[item.value] >= 0 ? load(item.value, at, {weights}, when) : computed(item.value, item);
    const auto [position_of_item, step] = position(at, weights);
    const IndexPtr offset = add(position_of_item, loops::constant(to.offset));
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

  const Fusion& fusion_;
  const Schedule& schedule_;
  const LoopTree& tree_;
  loops::Kernel& kernel_;
  int next_variable_;                    // above those of the tree's loops
  std::vector<int> item_of_;             // by value, -1 for an input
  std::vector<int> input_number_;        // by value, -1 for what is no input
  std::vector<RegisterId> register_of_;  // by value
  std::vector<int> array_of_;            // by value, -1 for what lives in a register of its scope
  std::vector<int> shared_of_;           // by value: the buffer of a shared value, -1 for others
  ThreadVariables threads_;
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
