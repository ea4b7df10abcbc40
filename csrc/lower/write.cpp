#include "lower/write.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "graph/index.h"
#include "lower/bulk.h"
#include "lower/guards.h"
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
    case Parallel::kBulk: break;
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
        carry_of_(fusion.values.size(), -1),
        shared_of_(fusion.values.size(), -1),
        ring_of_(fusion.values.size(), -1),
        is_operand_(fusion.values.size(), false) {
    for (const ir::Op& op : fusion.ops) {
      for (ValueId id : op.inputs) is_operand_[id] = true;
    }
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
    if (!kernel_.rings.empty()) statements.insert(statements.begin(), {{}, {loops::Sync{}}, true});
    for (size_t ring = kernel_.rings.size(); ring-- > 0;) {
      statements.insert(statements.begin(), {{}, {loops::OpenRing{static_cast<int>(ring)}}, true});
    }
    kernel_.body = close(std::move(statements), threads_);
    return even_;
  }

 private:
  struct Loaded {
    IndexPtr at;
    int64_t lane_step;
    loops::Condition when;
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
      if (is_complete_later(item, schedule_) || is_bulk(item)) kept[item.value] = true;
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
        if (is_bulk(item)) make_ring(item);
        continue;
      }
      int64_t size = 1;
      for (int position : kept_positions(item)) size *= tree_.loops[item.loops[position]].extent;
      array_of_[item.value] = static_cast<int>(kernel_.arrays.size());
      kernel_.arrays.push_back({value.name, value.dtype, size});
    }
    for (const Item& item : tree_.items) {
      if (!is_scan(item)) continue;
      const ScanLoops loops = scan_loops(tree_, item, schedule_);
      if (loops.carried < 0) continue;
      int64_t size = 1;
      for (int position : loops.beside) size *= tree_.loops[item.loops[position]].extent;
      const ir::Value& value = fusion_.values[item.value];
      carry_of_[item.value] = static_cast<int>(kernel_.arrays.size());
      kernel_.arrays.push_back({value.name + "_carry", value.dtype, size});
    }
  }
  void make_ring(const Item& item) {
    loops::Buffer& buffer = kernel_.buffers.back();
    const int64_t stages = schedule_.domains[item.value].stages, size = stage_size(buffer.shared_size, buffer.dtype);
    const int number = shared_of_[item.value], variable = next_variable_++;
    buffer.shared_size = stages * size;
    ring_of_[item.value] = static_cast<int>(kernel_.rings.size());
    kernel_.rings.push_back({number, number + 1, stages, size, variable});
    kernel_.buffers.push_back({buffer.name + "_full", DType::kU64, true, stages});
  }
  bool is_bulk(const Item& item) const {
    return item.op != nullptr && schedule::is_bulk(schedule_.domains[item.value]);
  }
  // Whether its copies run ahead of the loop.
  bool is_circular(const Item& item, int loop) const {
    return is_bulk(item) && schedule_.domains[item.value].stages > 1 && item.shared > 0 &&
           item.loops[item.shared - 1] == loop && tree_.loops[loop].extent > 1;
  }
  bool is_circular(const Item& item) const {
    return item.shared > 0 && item.loops[item.shared - 1] >= 0 && is_circular(item, item.loops[item.shared - 1]);
  }
  // The copy of an item's elements where the innermost loop that it is inlined in has the given index, if any.
  BulkStatements bulk(const Item& item, const IndexPtr& innermost) {
    BulkCopy copy{fusion_, schedule_.domains[item.value], *item.op};
    copy.input = input_number_[item.op->inputs[0]];
    copy.ring = ring_of_[item.value];
    for (int p = 0; p < item.shared; ++p) copy.outer.push_back(variable(item.loops[p]));
    if (innermost != nullptr) copy.outer.back() = innermost;
    copy.storage = storage_of(item).weights;
    return write_bulk(copy, next_variable_);
  }
  void emit(std::vector<Guarded> statements) {
    for (Guarded& statement : statements) statements_.push_back(std::move(statement));
  }
  // Copies for the first iterations of a loop.
  void fill_first(const Item& item) {
    const Domain& domain = schedule_.domains[item.value];
    const int64_t count = std::min<int64_t>(domain.prefetch, domain.loop[item.shared - 1].extent);
    if (count == 1) return emit(bulk(item, loops::constant(0)).fill);
    const int variable = next_variable_++;
    Guarded loop = enclose(bulk(item, loops::variable(variable)).fill, variable, threads_);
    auto& inner = std::get<loops::For>(loop.stmt.node);
    inner.extent = count;
    inner.parallel = loops::Parallel::kUnroll;
    statements_.push_back(std::move(loop));
  }
  // In each iteration of a loop, copies for a later one, where it comes.
  std::vector<Guarded> fill_ahead(const Item& item) {
    const Domain& domain = schedule_.domains[item.value];
    const int64_t extent = domain.loop[item.shared - 1].extent;
    if (extent <= domain.prefetch) return {};
    const IndexPtr later = add(variable(item.loops[item.shared - 1]), loops::constant(domain.prefetch));
    std::vector<Guarded> statements = bulk(item, later).fill;
    for (Guarded& statement : statements) statement.when.push_back({later, extent});
    return statements;
  }
  void await(ValueId id) {
    const BulkStatements here = bulk(tree_.items[item_of_[id]], nullptr);
    statements_.push_back({here.when, {loops::AwaitRing{ring_of_[id]}}, true});
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
        const bool runs = loop >= 0 || (is_bulk(item) && !axes.inserted[axes.loop[p]]);
        if (runs && !axes.reduced[axes.loop[p]]) nodes.push_back(axes.loop[p]);
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
  IndexPtr element(const Item& kept, const Item& user) const { return element(kept, user, kept_positions(kept)); }
  IndexPtr element(const Item& kept, const Item& user, const std::vector<int>& positions) const {
    IndexPtr at = loops::constant(0);
    for (int position : positions) {
      at = add(mul(at, loops::constant(tree_.loops[kept.loops[position]].extent)), variable(user.loops[position]));
    }
    return at;
  }
  // How many loops around the place where an array lives.
  size_t home(const Item& item) const { return loops_before(item, item.shared); }
  static size_t loops_before(const Item& item, int position) {
    return static_cast<size_t>(
        std::count_if(item.loops.begin(), item.loops.begin() + position, [](int loop) { return loop >= 0; }));
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
    std::vector<ValueId> filled;   // in bulk, not waited for yet
    for (const Node& node : nodes) {
      std::erase_if(filled, [&](ValueId id) {
        const bool read = touches(node, id, true);
        if (read) await(id);
        return read;
      });
      if (node.item >= 0 && is_bulk(tree_.items[node.item])) {
        const Item& item = tree_.items[node.item];
        if (!is_circular(item)) emit(bulk(item, nullptr).fill);
        filled.push_back(item.value);
        continue;
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
    std::vector<Guarded> body = write(node.body, depth + 1), ahead;
    // The next iteration writes again what this one reads.
    if (is_serial(loop.parallel) && shares_inside(node)) body.push_back({{}, {loops::Sync{}}, true});
    for (const Item& item : tree_.items) {
      if (!is_circular(item, node.loop)) continue;
      fill_first(item);
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
  RegisterId load(ValueId id, const graph::Indexer& indexer, const std::vector<int64_t>& weights, int64_t offset,
                  const loops::Condition& when) {
    auto [at, step] = position(indexer, weights);
    at = add(std::move(at), loops::constant(offset));
    for (const auto& [input, known] : loads_) {
      const bool same =
          input == id && known.lane_step == step && graph::same(known.at, at) && same_condition(known.when, when);
      if (same) return known.result;
    }
    const RegisterId loaded = new_register(fusion_.values[id].dtype);
    emit(loops::Load{loaded, input_number_[id], at, step}, when);
    loads_.push_back({id, {at, step, when, loaded}});
    return loaded;
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
    IndexPtr at = p->at;
    if (ring_of_[id] >= 0) {
      const loops::Ring& ring = kernel_.rings[ring_of_[id]];
      const IndexPtr stage = ring.stages > 1 ? loops::variable(ring.variable) : loops::constant(0);
      at = add(std::move(at), mul(stage, loops::constant(ring.stage_size)));
    }
    emit(loops::Load{result, shared_of_[id], std::move(at), p->lane_step.value_or(0)}, when);
    return result;
  }

  RegisterId computed(ValueId id, const Item& user) {
    const Item& producer = tree_.items[item_of_[id]];
    if (array_of_[id] < 0 || (!is_complete_later(producer, schedule_) && in_scope(producer, user)))
      return register_of_[id];
    const RegisterId result = new_register(fusion_.values[id].dtype);
    emit(loops::Get{result, array_of_[id], element(producer, user)});
    return result;
  }
  RegisterId operand(const Item& item, size_t i, const graph::Indexer& indexer, const loops::Condition& when) {
    const ValueId id = item.op->inputs[i];
    const std::vector<int> axes = schedule::result_axes(fusion_, *item.op, i);
    if (shared_of_[id] >= 0 && (ring_of_[id] >= 0 || !in_scope(tree_.items[item_of_[id]], item))) {
      const std::vector<int> nodes = schedule::axis_nodes(fusion_, schedule_.domains[id], id);
      std::vector<int> root_of(schedule_.domains[id].logical.size(), -1);
      for (size_t a = 0; a < axes.size(); ++a) root_of[nodes[a]] = axes[a];
      return load_shared(id, indexer, root_of, when);
    }
    if (input_number_[id] < 0) return computed(id, item);
    const schedule::Reading from = schedule::reading(fusion_, *item.op, i);
    return load(id, indexer, from.weights, from.offset, when);
  }

  void write_item(const Item& item) {
    const graph::Indexer at = indexer(item, true);
    const loops::Condition when = bounds(indexer(item, false), item.op == nullptr);
    if (item.op == nullptr) return store(item, at, when);
    const ir::Op& op = *item.op;
    std::vector<RegisterId> operands;
    for (size_t i = 0; i < op.inputs.size(); ++i) operands.push_back(operand(item, i, at, when));
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
        if (rounds_at_store(op)) {
          result = operands[0];
          break;
        }
        const DType from = op.inputs.empty() ? own : fusion_.values[op.inputs[0]].dtype;
        result = new_register(own);
        emit(loops::Compute{result, op.kind, std::move(operands), op.attribute, from, op.label});
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
    loops::ScanThreads scan{over.arrays[0], carry_of_[item.value], element(item, item, along.beside), over.op};
    scan.reverse = std::get<ir::Scan>(item.op->attribute).reverse;
    scan.lanes = over.lanes;
    scan.threads = over.threads;
    scan.threads_y = over.threads_y;
    scan.run = along.run;
    statements_.push_back({{}, {std::move(scan)}, true});
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
        input_number_[item.value] >= 0 ? load(item.value, at, weights, 0, when) : computed(item.value, item);
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
  std::vector<int> carry_of_;            // by value, -1 for what is no scan that carries a value on
  std::vector<int> shared_of_;           // by value: the buffer of a shared value, -1 for others
  std::vector<int> ring_of_;             // by value: the ring that bulk copies of it fill, -1 for others
  std::vector<bool> is_operand_;         // by value
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
