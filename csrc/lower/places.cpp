#include "lower/places.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/lists.h"
#include "base/target.h"
#include "lower/scan.h"
#include "schedule/axes.h"

namespace jf::lower {

using ir::ValueId;
using loops::IndexPtr;
using schedule::Domain;

loops::Parallel to_loops(schedule::Parallel parallel) {
  using schedule::Parallel;
  switch (parallel) {
    case Parallel::kSerial:
    case Parallel::kVector: return loops::Parallel::kSerial;  // lanes have no loop
    case Parallel::kUnroll: return loops::Parallel::kUnroll;
    case Parallel::kTask: return loops::Parallel::kTask;
    case Parallel::kBlock: return loops::Parallel::kBlock;
    case Parallel::kBlockY: return loops::Parallel::kBlockY;
    case Parallel::kCluster: return loops::Parallel::kCluster;
    case Parallel::kThread: return loops::Parallel::kThread;
    case Parallel::kThreadY: return loops::Parallel::kThreadY;
    case Parallel::kBulk: break;
  }
  throw InternalError(__FILE__, __LINE__, "parallel type", "");
}

Places::Places(const ir::Fusion& fusion, const schedule::Schedule& schedule, const LoopTree& tree,
               loops::Kernel& kernel)
    : fusion_(fusion),
      schedule_(schedule),
      tree_(tree),
      kernel_(kernel),
      next_variable_(static_cast<int>(tree.loops.size())),
      item_of_(fusion.values.size(), -1),
      input_number_(fusion.values.size(), -1),
      array_of_(fusion.values.size(), -1),
      carry_of_(fusion.values.size(), -1),
      factors_of_(fusion.values.size(), -1),
      shared_of_(fusion.values.size(), -1),
      ring_of_(fusion.values.size(), -1) {
  for (size_t i = 0; i < fusion.inputs.size(); ++i) input_number_[fusion.inputs[i]] = static_cast<int>(i);
  for (size_t i = 0; i < tree.items.size(); ++i) {
    if (tree.items[i].op != nullptr) item_of_[tree.items[i].value] = static_cast<int>(i);
  }
  for (size_t loop = 0; loop < tree.loops.size(); ++loop) {
    const schedule::Parallel parallel = tree.loops[loop].parallel;
    // Blocks of a cluster meet, too.
    const bool meets = is_thread(parallel) || parallel == schedule::Parallel::kCluster;
    if (meets) threads_.insert(static_cast<int64_t>(loop));
  }
  make_arrays();
}

// A value whose user stands outside of the loops it is computed in is kept in an array.
void Places::make_arrays() {
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
    if (schedule_.domains[item.value].memory == schedule::Memory::kShared) {
      shared_of_[item.value] = static_cast<int>(kernel_.buffers.size());
      std::string name = value.name;
      const auto taken = [&](const loops::Buffer& buffer) { return buffer.name == name; };
      while (std::any_of(kernel_.buffers.begin(), kernel_.buffers.end(), taken)) name += "_shared";  // of an output
      kernel_.buffers.push_back({name, value.dtype, true, storage_of(item).elements});
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
    const ir::Value& value = fusion_.values[item.value];
    if (loops.together && ir::is_recurrence(item.op->kind)) {
      factors_of_[item.value] = static_cast<int>(kernel_.arrays.size());
      kernel_.arrays.push_back({value.name + "_factors", value.dtype, kernel_.arrays[array_of_[item.value]].size});
    }
    if (loops.carried < 0) continue;
    int64_t size = 1;
    for (int position : loops.beside) size *= tree_.loops[item.loops[position]].extent;
    carry_of_[item.value] = static_cast<int>(kernel_.arrays.size());
    kernel_.arrays.push_back({value.name + "_carry", value.dtype, size});
  }
}

void Places::make_ring(const Item& item) {
  loops::Buffer& buffer = kernel_.buffers.back();
  const Domain& domain = schedule_.domains[item.value];
  const int64_t stages = domain.stages, size = stage_size(buffer.shared_size, domain, buffer.dtype);
  const int number = shared_of_[item.value], variable = next_variable_++;
  buffer.shared_size = stages * size;
  buffer.alignment = stage_alignment(domain);
  ring_of_[item.value] = static_cast<int>(kernel_.rings.size());
  kernel_.rings.push_back({number, number + 1, stages, size, variable});
  kernel_.buffers.push_back({buffer.name + "_full", DType::kU64, true, stages});
}

bool Places::is_circular(const Item& item, int loop) const {
  return is_bulk(item) && schedule_.domains[item.value].stages > 1 && item.shared > 0 &&
         item.loops[item.shared - 1] == loop && tree_.loops[loop].extent > 1;
}
bool Places::is_circular(const Item& item) const {
  return item.shared > 0 && item.loops[item.shared - 1] >= 0 && is_circular(item, item.loops[item.shared - 1]);
}

IndexPtr Places::skew(const Item& item, const IndexPtr& innermost) const {
  const Domain& domain = schedule_.domains[item.value];
  if (!has_skew(domain, fusion_.values[item.value].dtype)) return nullptr;
  std::vector<IndexPtr> indices;
  for (int p = 0; p < item.shared; ++p) indices.push_back(variable(item.loops[p]));
  if (innermost != nullptr) indices.back() = innermost;
  indices.resize(domain.loop.size(), loops::constant(0));
  const schedule::Reading from = schedule::reading(fusion_, *item.op, 0);
  const IndexPtr begin = graph::Indexer(domain, std::move(indices)).position(from.weights).at;
  return skew_of(add(begin, loops::constant(from.offset)), fusion_.values[item.value].dtype);
}

// The copy of an item's elements where the innermost loop that it is inlined in has the given index, if any.
BulkStatements Places::bulk(const Item& item, const IndexPtr& innermost) {
  BulkCopy copy{kernel_, fusion_, schedule_.domains[item.value], item.value};
  for (int p = 0; p < item.shared; ++p) copy.outer.push_back(variable(item.loops[p]));
  if (innermost != nullptr) copy.outer.back() = innermost;
  const schedule::Reading from = schedule::reading(fusion_, *item.op, 0);
  copy.buffer = input_number_[item.op->inputs[0]];
  copy.weights = from.weights;
  copy.offset = from.offset;
  copy.shared = ring_of_[item.value];
  copy.skew = skew(item, innermost);
  copy.in_shared = [&](const graph::Indexer& at) { return at.position(storage_of(item).weights).at; };
  return write_bulk(copy, next_variable_);
}

Guarded Places::bulk_store(const Item& item) {
  const Domain& domain = schedule_.domains[item.value];
  const ir::Op& op = *tree_.items[item_of_[item.value]].op;
  BulkCopy copy{kernel_, fusion_, domain, item.value};
  for (int p = 0; p < schedule::first_bulk(domain); ++p) copy.outer.push_back(variable(item.loops[p]));
  const schedule::Writing to = schedule::writing(fusion_, item.value);
  copy.buffer = static_cast<int>(fusion_.inputs.size() + item.output);
  copy.weights = to.weights;
  copy.offset = to.offset;
  copy.shared = shared_of_[op.inputs[0]];
  copy.in_shared = [&](const graph::Indexer& at) { return in_shared(op.inputs[0], at, roots_read(op, 0)).at; };
  return write_bulk_store(copy, next_variable_);
}

bool Places::overwrites_stored(const Node& node, size_t depth) const {
  for (const Item& item : tree_.items) {
    if (item.op != nullptr || !is_bulk_store(item)) continue;
    const ValueId from = tree_.items[item_of_[item.value]].op->inputs[0];
    const auto comes_back = [&](int loop) {
      return loop >= 0 && is_serial(tree_.loops[loop].parallel) && tree_.loops[loop].extent > 1;
    };
    if (home(tree_.items[item_of_[from]]) != depth || !touches(node, from, false)) continue;
    if (std::any_of(item.loops.begin(), item.loops.end(), comes_back)) return true;
  }
  return false;
}

graph::Position Places::in_shared(ValueId id, const graph::Indexer& user, const std::vector<int>& root_of) const {
  const schedule::AxisTree axes = schedule::replay(schedule_.domains[id], fusion_.values[id].name);
  const std::optional<graph::Position> p = user.position(axes, storage_of(tree_.items[item_of_[id]]).weights, root_of);
  JF_REQUIRE(p.has_value(), "[lower] ", fusion_.values[id].name,
             " is stored over axes that its reader cuts unevenly; choose others by set_allocation");
  return *p;
}

std::vector<int> Places::roots_read(const ir::Op& op, size_t operand) const {
  const ValueId id = op.inputs[operand];
  const std::vector<int> axes = schedule::result_axes(fusion_, op, operand);
  const std::vector<int> nodes = schedule::axis_nodes(fusion_, schedule_.domains[id], id);
  std::vector<int> root_of(schedule_.domains[id].logical.size(), -1);
  for (size_t a = 0; a < axes.size(); ++a) root_of[nodes[a]] = axes[a];
  return root_of;
}

std::vector<Guarded> Places::fill(const Item& item) { return bulk(item, nullptr).fill; }

std::vector<Guarded> Places::fill_first(const Item& item) {
  const Domain& domain = schedule_.domains[item.value];
  const int64_t count = std::min<int64_t>(domain.prefetch, domain.loop[item.shared - 1].extent);
  if (count == 1) return bulk(item, loops::constant(0)).fill;
  const int variable = next_variable_++;
  std::vector<Guarded> result;
  result.push_back(enclose(bulk(item, loops::variable(variable)).fill, variable, threads_));
  auto& loop = std::get<loops::For>(result.back().stmt.node);
  loop.extent = count;
  loop.parallel = loops::Parallel::kUnroll;
  return result;
}

std::vector<Guarded> Places::fill_ahead(const Item& item) {
  const Domain& domain = schedule_.domains[item.value];
  const int64_t extent = domain.loop[item.shared - 1].extent;
  if (extent <= domain.prefetch) return {};
  const IndexPtr later = add(variable(item.loops[item.shared - 1]), loops::constant(domain.prefetch));
  std::vector<Guarded> statements = bulk(item, later).fill;
  for (Guarded& statement : statements) statement.when.push_back({later, extent});
  return statements;
}

Guarded Places::await(ValueId id) {
  const BulkStatements here = bulk(tree_.items[item_of_[id]], nullptr);
  return {here.when, {loops::AwaitRing{ring_of_[id]}}, true};
}

Places::Storage Places::storage_of(const Item& item) const {
  const Domain& domain = schedule_.domains[item.value];
  const schedule::AxisTree axes = schedule::replay(domain, fusion_.values[item.value].name);
  std::vector<int> nodes;
  // Along an inserted axis there is one element, wherever it is computed.
  std::copy_if(domain.storage.begin(), domain.storage.end(), std::back_inserter(nodes),
               [&](int node) { return !axes.inserted[node]; });
  if (domain.storage.empty()) {
    for (size_t p = item.shared; p < item.loops.size(); ++p) {
      const int loop = item.loops[p];
      const bool runs = loop >= 0 || (is_bulk(item) && !axes.inserted[axes.loop[p]]);
      const bool own = domain.loop[p].parallel == schedule::Parallel::kCluster;  // of each block
      if (runs && !own && !axes.reduced[axes.loop[p]]) nodes.push_back(axes.loop[p]);
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

bool Places::touches(const Node& node, ValueId shared, bool reads) const {
  if (node.item < 0) {
    return std::any_of(node.body.begin(), node.body.end(),
                       [&](const Node& inner) { return touches(inner, shared, reads); });
  }
  const Item& item = tree_.items[node.item];
  if (!reads) return item.op != nullptr && item.value == shared;
  if (item.op == nullptr) return false;
  const bool copies = ring_of_[shared] >= 0 || schedule::is_bulk(schedule_.domains[item.value]);
  if (!copies && in_scope(tree_.items[item_of_[shared]], item)) return false;
  return contains(item.op->inputs, shared);
}

bool Places::shares_inside(const Node& node) const {
  for (ValueId id = 0; id < static_cast<ValueId>(shared_of_.size()); ++id) {
    if (shared_of_[id] >= 0 && touches(node, id, false) && touches(node, id, true)) return true;
  }
  return false;
}

// Folds of more than a warp go through shared memory, so that all threads of the block wait for each other.
bool Places::meets(const loops::Combine& combine) const {
  const int64_t x = extent_of(tree_, schedule::Parallel::kThread), y = extent_of(tree_, schedule::Parallel::kThreadY);
  return combine.cluster || (combine.threads && x > kWarp) || (combine.threads_y && x * y > kWarp);
}

bool Places::reads_shared(const loops::Stmt& statement) const {
  const auto reads = [&](const auto& node) {
    using Node = std::decay_t<decltype(node)>;
    if constexpr (std::is_same_v<Node, loops::Load>) return kernel_.buffers[node.buffer].shared_size > 0;
    if constexpr (requires { node.body; }) {
      return std::any_of(node.body.begin(), node.body.end(), [&](const loops::Stmt& s) { return reads_shared(s); });
    }
    return false;
  };
  return std::visit(reads, statement.node);
}

bool Places::meet_in(const std::vector<Guarded>& statements) const {
  return std::any_of(statements.begin(), statements.end(), [&](const Guarded& s) {
    const auto* combine = std::get_if<loops::Combine>(&s.stmt.node);
    return std::holds_alternative<loops::Sync>(s.stmt.node) || (combine != nullptr && meets(*combine));
  });
}

bool Places::meet_after_reads(const std::vector<Guarded>& statements) const {
  bool met = false;
  for (const Guarded& statement : statements) {
    const auto* combine = std::get_if<loops::Combine>(&statement.stmt.node);
    const bool fold = combine != nullptr && meets(*combine);
    met = fold || std::holds_alternative<loops::Sync>(statement.stmt.node) || (met && !reads_shared(statement.stmt));
  }
  return met;
}

bool Places::in_scope(const Item& producer, const Item& user) {
  const std::vector<int> a = path(producer), b = path(user);
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}
std::vector<int> Places::kept_positions(const Item& item) const {
  const std::vector<bool> reduced = reduced_loops(item);
  std::vector<int> positions;
  for (size_t p = item.shared; p < item.loops.size(); ++p) {
    const int loop = item.loops[p];
    if (loop >= 0 && !reduced[p] && is_serial(tree_.loops[loop].parallel)) positions.push_back(static_cast<int>(p));
  }
  return positions;
}
std::vector<bool> Places::reduced_loops(const Item& item) const {
  const schedule::AxisTree axes = schedule::replay(schedule_.domains[item.value], fusion_.values[item.value].name);
  std::vector<bool> reduced;
  for (int node : axes.loop) reduced.push_back(axes.reduced[node]);
  return reduced;
}
IndexPtr Places::element(const Item& kept, const Item& user) const { return element(kept, user, kept_positions(kept)); }
IndexPtr Places::element(const Item& kept, const Item& user, const std::vector<int>& positions) const {
  IndexPtr at = loops::constant(0);
  for (int position : positions) {
    const int64_t extent = tree_.loops[kept.loops[position]].extent;
    const int loop = position < static_cast<int>(user.loops.size()) ? user.loops[position] : -1;
    const bool alike = loop >= 0 && tree_.loops[loop].extent == extent;
    at = add(mul(at, loops::constant(extent)), alike ? variable(loop) : loops::constant(0));
  }
  return at;
}
size_t Places::home(const Item& item) { return loops_before(item, item.shared); }
size_t Places::loops_before(const Item& item, int position) {
  return static_cast<size_t>(
      std::count_if(item.loops.begin(), item.loops.begin() + position, [](int loop) { return loop >= 0; }));
}

}  // namespace jf::lower
