#include "lower/write.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"
#include "graph/index.h"
#include "lower/guards.h"
#include "lower/loose.h"
#include "lower/operands.h"
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

class Writer : Operands {
 public:
  Writer(const Fusion& fusion, const Schedule& schedule, const LoopTree& tree, Platform platform, loops::Kernel& kernel)
      : Operands(fusion, schedule, tree, platform, kernel),
        is_operand_(fusion.values.size(), false),
        loose_(loose_values(fusion)) {
    // What is only put in its place is only stored.
    for (auto op = fusion.ops.rbegin(); op != fusion.ops.rend(); ++op) {
      if (op->kind == ir::OpKind::kPlace && !is_operand_[op->output]) continue;
      for (ValueId id : op->inputs) is_operand_[id] = true;
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
  void sync() { statements_.push_back({{}, {loops::Sync{}}, true}); }

  using Operands::emit;
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
    if (schedule_.domains[item.value].ragged.empty()) return;
    for (const std::vector<IndexRead>& reads : {counts(item), starts(item)}) {
      for (const IndexRead& read : reads) reads_.offer(read, next_variable_, threads_);
    }
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
    lane_limits_.clear();
    any_item_ = false;
    const size_t loads = loads_.size();
    Guarded statement = enclose(write(node.body, depth + 1), node.loop, threads_);
    loads_.resize(loads);
    loops::Body body = std::move(std::get<loops::For>(statement.stmt.node).body);
    statement.stmt = {loops::Vector{node.loop, lane_->base, std::move(lane_limits_), std::move(body)}};
    statements_.push_back(std::move(statement));
    lane_.reset();
  }
  static int first_item(const Node& node) { return node.item >= 0 ? node.item : first_item(node.body.front()); }

  void write_item(const Item& item) {
    const graph::Indexer at = indexer(item, true);
    const loops::Condition when = bounds(item, indexer(item, false));
    if (item.op == nullptr) return store(item, at, when);
    const ir::Op& op = *item.op;
    std::vector<RegisterId> operands;
    if (op.kind == ir::OpKind::kTake) {
      operands.push_back(take(item, at, when));
    } else if (op.kind == ir::OpKind::kSearch) {
      operands.push_back(search(item, at, when));
    } else if (op.kind == ir::OpKind::kPartition) {
      operands.push_back(partition(item, at, when));
    } else {
      const size_t count = ir::has_nest_operands(op.kind) ? 1 : op.inputs.size();
      for (size_t i = 0; i < count; ++i) operands.push_back(operand(item, i, at, when));
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
          if (factors_of_[op.output] >= 0) {
            emit(loops::Set{factors_of_[op.output], element(item, item), operands[1], true}, when);
          }
          return;
        }
        result = operands[0];
        const bool linear = ir::is_recurrence(op.kind);
        if (along.carried < 0 && !along.lanes && !linear) break;
        result = new_register(own);
        loops::Scan scan{result,
                         carry_of_[op.output],
                         element(item, item, along.beside),
                         ir::fold_of(op.kind),
                         std::get<ir::Scan>(op.attribute).reverse,
                         along.lanes,
                         operands[0]};
        if (linear) scan.factor = operands[1];
        scan.resets = op.kind == ir::OpKind::kScanResets;
        emit(std::move(scan), when);
        break;
      }
      case OpClass::kConcat: JF_CHECK(false, "a concat in a generated kernel");
      case OpClass::kGrouped: JF_CHECK(false, "a grouped product in a generated kernel");
    }
    if (shared_of_[op.output] >= 0) {
      const auto [offset, step] = position(at, storage_of(item).weights);
      emit(loops::Store{shared_of_[op.output], offset, step, result}, when);
    }
    if (array_of_[op.output] >= 0) emit(loops::Set{array_of_[op.output], element(item, item), result}, when);
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
    if (factors_of_[item.value] >= 0) emit(loops::Declare{factors_of_[item.value], ir::OpKind::kMul});
  }
  void combine(const Item& item) {
    if (!is_complete_later(item, schedule_)) return;
    loops::Combine statement{{array_of_[item.value]}, ir::fold_of(item.op->kind), false, false, false, false};
    const schedule::AxisTree axes = schedule::replay(schedule_.domains[item.value], fusion_.values[item.value].name);
    for (size_t p = 0; p < item.loops.size(); ++p) {
      const int node = axes.loop[p];
      if ((!axes.reduced[node] && axes.scanned[node] == 0) || item.loops[p] < 0) continue;
      const auto& [extent, parallel, direction] = tree_.loops[item.loops[p]];
      statement.lanes = statement.lanes || parallel == Parallel::kVector;
      statement.threads = statement.threads || (parallel == Parallel::kThread && extent > 1);
      statement.threads_y = statement.threads_y || (parallel == Parallel::kThreadY && extent > 1);
      statement.cluster = statement.cluster || (parallel == Parallel::kCluster && extent > 1);
    }
    const bool meets = statement.threads || statement.threads_y || statement.cluster;
    if (!statement.lanes && !meets) return;
    if (statement.cluster) check_cluster_fold(item, statement);
    for (int l = 0; meets && l < item.shared; ++l) {
      if (item.loops[l] < 0) continue;
      const auto& [extent, parallel, direction] = tree_.loops[item.loops[l]];
      if (!is_thread(parallel) && (!statement.cluster || parallel != Parallel::kCluster)) continue;
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
                          last->cluster == statement.cluster && dtype(*last) == dtype(statement);
    if (together) return last->arrays.push_back(array_of_[item.value]);
    statements_.push_back({{}, {std::move(statement)}, meets});
  }
  // Blocks exchange one result each.
  void check_cluster_fold(const Item& item, const loops::Combine& fold) const {
    for (const auto& [parallel, folded] :
         {std::pair(Parallel::kThread, fold.threads), std::pair(Parallel::kThreadY, fold.threads_y)}) {
      JF_REQUIRE(folded || extent_of(tree_, parallel) == 1, "[lower] ", fusion_.values[item.value].name,
                 " is folded over the blocks of a cluster, but not over their ", extent_of(tree_, parallel), " ",
                 name(parallel), " iterations; fold it over both");
    }
  }
  void scan_threads(const Item& item, const loops::Combine& over) {
    const ScanLoops along = scan_loops(tree_, item, schedule_);
    const schedule::AxisTree axes = schedule::replay(schedule_.domains[item.value], fusion_.values[item.value].name);
    for (int position : kept_positions(item)) {
      const int node = axes.loop[position];
      JF_CHECK(axes.scanned[node] != 0 || axes.extents[node] == 1, fusion_.values[item.value].name,
               " is scanned by threads with elements beside each other");
    }
    loops::ScanThreads scan{over.arrays[0], carry_of_[item.value], element(item, item, along.beside),
                            ir::fold_of(item.op->kind)};
    scan.reverse = std::get<ir::Scan>(item.op->attribute).reverse;
    scan.lanes = over.lanes;
    scan.threads = over.threads;
    scan.threads_y = over.threads_y;
    scan.run = along.run;
    scan.factors = factors_of_[item.value];
    scan.resets = item.op->kind == ir::OpKind::kScanResets;
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
    std::optional<loops::Rows> rows;  // that lanes go along
    for (const IndexRead& start : starts(item)) {
      const IndexPtr first = loops::variable(reads_.variable(start));
      const graph::Position own = at.at_root(start.axis);
      const IndexPtr row = add(first, own.at);
      offset = add(mul(first, loops::constant(weights[start.axis])), std::move(offset));
      when.push_back({row, start.high});
      if (own.lane_step == 0) continue;
      even_ = even_ && own.lane_step == 1 && step == 1 && !rows;
      rows = {row, start.high - 1};
    }
    loops::Store store{static_cast<int>(fusion_.inputs.size() + item.output), offset, step, value};
    store.rows = rows;
    loops::Stmt statement{std::move(store)};
    // Where all tasks, blocks or threads have the same element, the first one stores it.
    for (Parallel parallel : {Parallel::kThread, Parallel::kThreadY, Parallel::kCluster, Parallel::kBlock,
                              Parallel::kBlockY, Parallel::kTask}) {
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

  std::vector<bool> is_operand_;  // by value
  std::vector<bool> loose_;       // by value: see loops::Compute
};

}  // namespace

bool write(const Fusion& fusion, const Schedule& schedule, const LoopTree& tree, Platform platform,
           loops::Kernel& kernel) {
  return Writer(fusion, schedule, tree, platform, kernel).run();
}

}  // namespace jf::lower
