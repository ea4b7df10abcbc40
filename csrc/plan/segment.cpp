#include "plan/segment.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "plan/recompute.h"
#include "plan/tables.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::ValueId;

// Kernels with more results than this gain nothing more from sharing a launch.
constexpr size_t kMaxOutputs = 32;
// Far below what a launch can pass, 512 pointers, since values of other segments are not counted.
constexpr size_t kMaxInputs = 256;
constexpr size_t kMaxNested = 8;  // results of a kernel of nested values

std::string text(const std::vector<int64_t>& shape) {
  std::string out;
  for (int64_t extent : shape) out += cat(out.empty() ? "" : ",", extent);
  return cat("[", out, "]");
}

// Where a segment stands in time. Sorting by it is a valid order: a value of a level reads lower levels or, in its own
// level, shorter iteration shapes, because between two values of one level only broadcasts change the shape. Grouped
// products and reductions come after the pointwise segments of their level. `part` counts down where one shape needs
// several kernels; for reductions it is the cluster.
struct Key {
  int level;
  DraftKind kind;
  size_t rank;
  std::vector<int64_t> shape;
  int part;
  auto operator<=>(const Key&) const = default;
};

// Searching a short table takes a thread no longer than reading what another kernel found: a few reads that its cache
// has. In a longer one, what many elements need is found once and stored.
constexpr int64_t kShortTable = 4096, kFewReaders = 64;

// Elements from which on turning rows saves more than the launch of a kernel for it, about 4 ps of an H200 for each.
constexpr int64_t kLeastTurned = 1 << 21;
// Shorter ones are rows of threads, whose neighbours read neighbours.
constexpr int64_t kTurnedRow = 512;

Place identity_place(const ir::Value& value) {
  Place place;
  int next = 0;
  for (const ir::Axis& axis : value.axes) place.push_back(axis.extent == 1 ? -1 : next++);
  return place;
}

class Drafter {
 public:
  Drafter(const Fusion& fusion, const Target& target)
      : fusion_(fusion),
        clusters_(find_clusters(fusion, target)),
        recompute_(fusion, clusters_),
        memory_(memory_of(fusion)),
        on_cuda_(target.platform == Platform::kCuda),
        is_table_(fusion.values.size(), false),
        is_input_(fusion.values.size(), false),
        level_(fusion.values.size(), 0),
        cluster_level_(clusters_.all.size(), 0),
        definition_(fusion.values.size(), 0),
        wanted_(fusion.values.size()),
        users_(fusion.values.size()) {
    for (ValueId id : fusion.inputs) is_input_[id] = true;
    for (size_t i = 0; i < fusion.ops.size(); ++i) definition_[fusion.ops[i].output] = i;
    is_table_ = find_tables(fusion, clusters_, target);
    while (raise_levels()) continue;
    for (ValueId id : fusion.outputs) wanted_[id] = {true, kNever, "its outputs have the iteration domain "};
    for (size_t i = fusion.ops.size(); i-- > 0;) place(i);
    copy_inputs();
  }

  std::vector<Draft> drafts() && {
    std::vector<Draft> result;
    for (auto& [key, building] : drafts_) {
      Draft& draft = building.draft;
      draft.kind = key.kind;
      std::sort(draft.ops.begin(), draft.ops.end());
      std::sort(draft.outputs.begin(), draft.outputs.end());
      for (ValueId id : draft.outputs) {
        const bool bound = key.kind == DraftKind::kReduction && clusters_.of[id] == key.part;
        draft.places.push_back(bound ? clusters_.places[id] : identity_place(fusion_.values[id]));
      }
      if (key.kind == DraftKind::kReduction) {
        for (size_t number : draft.ops) {
          if (auto fold = clusters_.folds.find(number); fold != clusters_.folds.end()) draft.folds.insert(*fold);
        }
      }
      result.push_back(std::move(draft));
    }
    return result;
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();
  struct Want {
    bool in_memory = false;
    int deadline = kNever;  // the last level whose pointwise segments may store it
    const char* why = "";
  };

  struct Building {
    Draft draft;
    std::set<ValueId> inputs;  // of the whole fusion, that it reads

    bool full() const { return draft.outputs.size() >= kMaxOutputs || inputs.size() >= kMaxInputs; }
    void store(ValueId value, std::string why) {
      if (draft.outputs.empty()) draft.reason = std::move(why);
      draft.outputs.push_back(value);
    }
  };

  // A value is one level above the grouped products, the reductions and the transposes of computed values that it comes
  // from. A cluster has the level of what it reads. Whether anything rose.
  bool raise_levels() {
    bool rose = false;
    for (const Op& op : fusion_.ops) {
      const int cluster = clusters_.of[op.output];
      int level = 0;
      for (ValueId id : op.inputs) {
        if (cluster < 0 || clusters_.of[id] != cluster) level = std::max(level, level_[id]);
      }
      if (cluster >= 0) {
        rose = rose || level > cluster_level_[cluster];
        cluster_level_[cluster] = std::max(level, cluster_level_[cluster]);
        level = cluster_level_[cluster] + 1;
      } else {
        const bool moves = op.kind == OpKind::kTranspose || ir::reads_memory(op.kind);
        level += op.kind == OpKind::kConcat || (moves && !is_input_[op.inputs[0]]) ||
                 op.kind == OpKind::kGroupedMatmul || leaves_nested(op);
      }
      if (const int joined = joined_level(op); joined >= 0) level = joined;
      rose = rose || level > level_[op.output];
      level_[op.output] = level;
    }
    // A result is stored by the kernel that reads the same, which then runs when the rest is there.
    for (ValueId id : fusion_.outputs) {
      const int cluster = clusters_.beside[id];
      if (cluster < 0 || cluster_level_[cluster] >= level_[id]) continue;
      cluster_level_[cluster] = level_[id];
      rose = true;
    }
    return rose && !clusters_.all.empty();
  }

  bool is_nested(ValueId value) const { return ir::ragged_axis(fusion_.values[value]) >= 0; }
  bool leaves_nested(const Op& op) const { return plan::leaves_nested(fusion_, op); }

  static bool is_elementwise(const Op& op) {
    return ir::info(op.kind).op_class == OpClass::kPointwise || op.kind == OpKind::kBroadcast;
  }

  // What a kernel folds: the shape and extents of rows, and the axes.
  std::vector<int64_t> folded_space(const Op& op) const {
    const ir::Value& from = fusion_.values[op.inputs[0]];
    std::vector<int64_t> space = ir::shape(from);
    for (int axis : ir::ragged_axes(from)) {
      const ir::Axis& ragged = from.axes[axis];
      space.push_back(ragged.extents);
      space.insert(space.end(), ragged.by.begin(), ragged.by.end());
    }
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    space.push_back(reduce == nullptr ? -std::get<ir::Combine>(op.attribute).components : 0);
    if (reduce != nullptr) space.insert(space.end(), reduce->dims.begin(), reduce->dims.end());
    return space;
  }

  // The level whose kernels of nested values can read a value from memory.
  int stored_level(ValueId value) const {
    const bool earlier_kind = !is_input_[value] && (clusters_.of[value] >= 0 ||
                                                    fusion_.ops[definition_[value]].kind == OpKind::kGroupedMatmul);
    return level_[value] - earlier_kind;
  }

  // What a fold of rows needs: dense values that follow element by element from folds of the same rows, such as what
  // is subtracted before a sum, are computed in the kernel of those.
  struct Joined {
    std::set<ValueId> values;  // these, and the folds
    int level = -1;            // of the folds; -1 for none
    int others = 0;            // the level of what is read from memory
  };
  Joined joined(const Op& op) const {
    Joined result;
    if (!leaves_nested(op) || !std::holds_alternative<ir::Reduce>(op.attribute)) return result;
    const std::vector<int64_t> space = folded_space(op);
    std::vector<ValueId> order, todo = {op.inputs[0]};
    std::set<ValueId> seen(todo.begin(), todo.end()), folds;
    while (!todo.empty()) {
      const ValueId id = todo.back();
      todo.pop_back();
      order.push_back(id);
      if (is_input_[id]) continue;
      const Op& made = fusion_.ops[definition_[id]];
      if (leaves_nested(made)) {
        if (std::holds_alternative<ir::Reduce>(made.attribute) && folded_space(made) == space) folds.insert(id);
        continue;
      }
      const OpClass op_class = ir::info(made.kind).op_class;
      // What is folded within rows has loops of its own already.
      if (is_nested(id) && (op_class == OpClass::kReduce || op_class == OpClass::kScan)) return {};
      if (!is_nested(id) && !is_elementwise(made)) continue;
      for (size_t i = 0; i < made.inputs.size(); ++i) {
        const bool from_memory = made.kind == OpKind::kPartition || (i > 0 && ir::has_nest_operands(made.kind));
        if (from_memory) {
          result.others = std::max(result.others, stored_level(made.inputs[i]));
        } else if (seen.insert(made.inputs[i]).second) {
          todo.push_back(made.inputs[i]);
        }
      }
    }
    for (ValueId id : folds) result.level = std::max(result.level, level_[id]);
    for (ValueId id : folds) {
      if (level_[id] == result.level) result.values.insert(id);
    }
    if (result.values.empty()) return result;
    // In the order of the ops, so that what a value is computed from is known.
    std::sort(order.begin(), order.end(), [&](ValueId a, ValueId b) {
      return (is_input_[a] ? -1 : static_cast<int64_t>(definition_[a])) <
             (is_input_[b] ? -1 : static_cast<int64_t>(definition_[b]));
    });
    for (ValueId id : order) {
      if (is_nested(id) || result.values.contains(id)) continue;
      const std::vector<ValueId>* inputs = is_input_[id] ? nullptr : &fusion_.ops[definition_[id]].inputs;
      const bool follows =
          inputs != nullptr && is_elementwise(fusion_.ops[definition_[id]]) &&
          std::any_of(inputs->begin(), inputs->end(), [&](ValueId input) { return result.values.contains(input); });
      if (follows) {
        result.values.insert(id);
      } else {
        result.others = std::max(result.others, level_[id]);
      }
    }
    return result;
  }
  int joined_level(const Op& op) const {
    const Joined found = joined(op);
    return found.others < found.level ? found.level : -1;
  }

  bool is_searched_first(const Op& op, const std::vector<Key>& users) const {
    if (ir::shape(fusion_.values[op.inputs[0]]).back() <= kShortTable) return false;
    return std::any_of(users.begin(), users.end(), [&](const Key& user) {
      int64_t readers = 1;
      for (int64_t extent : user.shape) readers *= extent;
      return readers > kFewReaders * ir::elements(fusion_.values[op.output]);
    });
  }

  // Whether a kernel that folds long rows and stores whole ones would find neighbours of a row apart in memory: each
  // element in a sector of its own, where tiles turn them in whole lines.
  bool is_turned_first(const Op& op, const std::vector<Key>& users) {
    if (!on_cuda_ || op.kind != OpKind::kTranspose) return false;
    const ir::Value& value = fusion_.values[op.output];
    const std::vector<int64_t> from = ir::shape(fusion_.values[op.inputs[0]]), rows = iteration_shape(value);
    if (ir::elements(value) < kLeastTurned || rows.back() < kTurnedRow) return false;
    int64_t along = -1, neighbours = -1;  // the operand's axes that are the last ones of the result, and of memory
    for (size_t a = 0; a < from.size(); ++a) {
      const int64_t axis = std::get<ir::Dims>(op.attribute).dims[a];
      if (from[axis] > 1) along = axis;
      if (from[a] > 1) neighbours = static_cast<int64_t>(a);
    }
    return along != neighbours && std::any_of(users.begin(), users.end(), [&](const Key& user) {
             const auto is_whole = [&](ValueId id) { return iteration_shape(fusion_.values[id]) == rows; };
             const std::vector<ValueId>& stored = drafts_[user].draft.outputs;
             return user.kind == DraftKind::kReduction && user.shape == rows &&
                    clusters_.all[user.part].space.folded.back() && std::any_of(stored.begin(), stored.end(), is_whole);
           });
  }

  // Computing it again costs no more than loading it.
  static bool is_cheap(const Op& op) {
    const OpClass op_class = ir::info(op.kind).op_class;
    return op_class == OpClass::kConstant || op_class == OpClass::kIota || op_class == OpClass::kView ||
           op.kind == OpKind::kConvert;
  }
  // Made from nothing, so that loading it is never better.
  static bool is_generated(const Op& op) { return op.inputs.empty() || op.kind == OpKind::kBroadcast; }

  Key key(int level, ValueId value) {
    std::vector<int64_t> shape = iteration_shape(fusion_.values[value]);
    Key key{level, DraftKind::kPointwise, shape.size(), shape, 0};
    int& part = parts_[key];
    key.part = -part;
    const auto found = drafts_.find(key);
    if (found != drafts_.end() && found->second.full()) key.part = -++part;
    return key;
  }

  Key cluster_key(int cluster) const {
    const std::vector<int64_t>& shape = clusters_.all[cluster].space.extents;
    return {cluster_level_[cluster], DraftKind::kReduction, shape.size(), shape, cluster};
  }
  std::string cluster_reason(int cluster) const {
    const Cluster& c = clusters_.all[cluster];
    std::string folded;
    for (size_t a = 0; a < c.space.extents.size(); ++a) {
      if (c.space.folded[a]) folded += cat(folded.empty() ? "" : ",", a);
    }
    return cat(c.direction == 0 ? "its reductions fold axes {" : "its scans and reductions go along axes {", folded,
               "} of the iteration domain ", text(c.space.extents),
               c.parts > 0 ? cat(", with ", c.parts, " parts of axis ", c.split_axis, c.in_turn ? " in turn" : "") : "",
               c.runs ? cat(", others axis ", c.space.extents.size() - 1, " alone") : "");
  }

  void place(size_t number) {
    const Op& op = fusion_.ops[number];
    const ValueId value = op.output;
    std::vector<Key>& users = users_[value];
    std::sort(users.begin(), users.end());
    users.erase(std::unique(users.begin(), users.end()), users.end());
    Want want = wanted_[value];
    if (users.empty() && !want.in_memory) return;  // reaches no output
    if (leaves_nested(op)) return place_nested(number);

    if (ir::reads_memory(op.kind) && !is_input_[op.inputs[0]]) {
      want_in_memory(op.inputs[0], level_[value] - 1, "its values are read at other places, of iteration domain ");
    }
    if (memory_[value] != value) return compute(number, users);
    if (op.kind == OpKind::kGroupedMatmul) return place_grouped(number);
    if (op.kind == OpKind::kConcat) {
      // Nothing to do: whoever computes an operand stores it in its place, before the first kernel that reads the
      // whole.
      const int deadline = users.empty() ? want.deadline : level_[value] - 1;
      for (ValueId id : op.inputs) want_in_memory(id, deadline, "its outputs have the iteration domain ");
      return;
    }
    if (clusters_.of[value] >= 0) return place_bound(number, std::move(want));
    const bool feeds_reduction = users.size() > 1 && users.back().kind == DraftKind::kReduction;
    const bool is_folded =
        std::any_of(users.begin(), users.end(), [](const Key& user) { return user.kind == DraftKind::kReduction; });
    if (!want.in_memory && op.kind == OpKind::kSearch && is_searched_first(op, users)) {
      want = {true, kNever, "a long table is searched once for what many elements need; iteration domain "};
    }
    if (!want.in_memory && is_table_[value]) {
      want = {true, kNever, "its values are dear and many elements share each; iteration domain "};
    }
    if (!want.in_memory && is_turned_first(op, users)) {
      want = {true, level_[value], "its rows are columns in memory, and are turned in tiles; iteration domain "};
    }
    const bool again =
        is_cheap(op) || recompute_.is_trivial(value) ||
        (feeds_reduction ? recompute_.better_again(value) : is_folded && on_cuda_ && recompute_.saves_store(value));
    if (!want.in_memory && !again) {
      if (users.size() > 1) want = {true, kNever, "several segments read its values, of iteration domain "};
      if (users.size() == 1 && drafts_[users[0]].full()) {
        want = {true, kNever, "the next kernel has as many inputs as it can take; iteration domain "};
      }
    }
    std::vector<Key> homes = want.in_memory && !is_generated(op) ? std::vector<Key>{} : users;
    if (want.in_memory) {
      const Key home = home_of(value, users, want.deadline);
      drafts_[home].store(value, want.why + text(home.shape));
      if (home.kind == DraftKind::kReduction) drafts_[home].draft.reason = cluster_reason(home.part);
      if (!contains(homes, home)) homes.push_back(home);
    }
    compute(number, homes);
  }

  // A value of a cluster. Other kernels read it, or compute it again from what they read instead.
  void place_bound(size_t number, Want want) {
    const Op& op = fusion_.ops[number];
    const ValueId value = op.output;
    const std::vector<Key>& users = users_[value];
    const Key home = cluster_key(clusters_.of[value]);
    const bool used_outside = std::any_of(users.begin(), users.end(), [&](const Key& user) { return user != home; });
    const bool only_folded =
        std::all_of(users.begin(), users.end(), [](const Key& user) { return user.kind == DraftKind::kReduction; });
    const bool widens = op.kind == OpKind::kConvert &&
                        size_of(fusion_.values[value].dtype) > size_of(fusion_.values[op.inputs[0]].dtype);
    const bool better = only_folded ? recompute_.better_again(value) : on_cuda_ && recompute_.saves_store(value);
    const bool outside_too = is_generated(op) || widens || (!want.in_memory && better);
    if (used_outside && !outside_too) want.in_memory = true;
    std::vector<Key> homes = outside_too ? users : std::vector<Key>{home};
    if (want.in_memory && !contains(homes, home)) homes.push_back(home);
    if (want.in_memory) drafts_[home].store(value, "");
    if (contains(homes, home)) {
      drafts_[home].draft.reason = cluster_reason(clusters_.of[value]);
    }
    compute(number, homes);
  }

  void compute(size_t number, const std::vector<Key>& homes) {
    const Op& op = fusion_.ops[number];
    for (const Key& home : homes) {
      Building& building = drafts_[home];
      building.draft.ops.push_back(number);
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        const ValueId id = op.inputs[i];
        if (i > 0 || !ir::reads_memory(op.kind)) users_[id].push_back(home);
        if (op.kind == OpKind::kTranspose || turned_.contains({home, op.output})) turned_.insert({home, id});
        if (is_input_[id]) building.inputs.insert(id);
      }
    }
  }

  // The first segment that needs the value anyway, where it has the value's iteration domain, which a square one has in
  // both orders of its axes, and runs in time; or a cluster that reads the same memory.
  Key home_of(ValueId value, const std::vector<Key>& users, int deadline) {
    auto can_store = [&](const Key& home) {
      const bool after_pointwise = home.kind != DraftKind::kPointwise;
      const auto found = drafts_.find(home);
      return home.kind != DraftKind::kNested && home.level + after_pointwise <= deadline &&
             !(on_cuda_ && turned_.contains({home, value})) && home.shape == iteration_shape(fusion_.values[value]) &&
             (found == drafts_.end() || !found->second.full());
    };
    if (!users.empty() && can_store(users.front())) return users.front();
    if (const int cluster = clusters_.beside[value]; cluster >= 0) {
      const Key home = cluster_key(cluster);
      if (level_[value] <= home.level && (users.empty() || home < users.front()) && can_store(home)) return home;
    }
    return key(level_[value], value);
  }

  void place_grouped(size_t number) {
    const Op& op = fusion_.ops[number];
    const int level = level_[op.output] - 1;
    const Key home{level, DraftKind::kGrouped, 0, {}, static_cast<int>(number)};
    Draft& draft = drafts_[home].draft;
    draft.reason = "a grouped product reads its operands from memory";
    draft.ops = {number};
    draft.outputs = {op.output};
    for (ValueId id : op.inputs) {
      want_in_memory(id, level, "a grouped product reads its values from memory, of iteration domain ");
    }
  }

  // Folds of the same rows along the same axes share a kernel, and so do values that are combined alike. Each kernel
  // computes the nested values that it needs.
  void place_nested(size_t number) {
    const Op& op = fusion_.ops[number];
    const int level = level_[op.output] - 1;
    const std::vector<int64_t> space = folded_space(op);
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    const Joined along = joined(op);
    const bool joins = along.level == level + 1 && along.others <= level;
    Key home{level, DraftKind::kNested, space.size(), space, 0};
    while (drafts_[home].draft.outputs.size() >= kMaxNested) ++home.part;
    Building& building = drafts_[home];
    building.store(op.output, reduce == nullptr ? "it combines the rows of components"
                                                : "its reductions fold the rows of components");
    // What it reads at other places comes from memory wherever it is used.
    std::set<ValueId> from_memory;
    std::vector<size_t> todo;
    for (size_t known = 1; known != from_memory.size();) {
      known = from_memory.size();
      todo = {number};
      for (size_t i = 0; i < todo.size(); ++i) {
        const Op& needed = fusion_.ops[todo[i]];
        const bool indexes = ir::has_nest_operands(needed.kind);
        for (size_t operand = 0; operand < needed.inputs.size(); ++operand) {
          const ValueId id = needed.inputs[operand];
          if (is_input_[id] || from_memory.contains(id)) continue;
          const bool reads = needed.kind == OpKind::kPartition || (indexes && operand > 0) ||
                             !(is_computed_along(id) || (joins && along.values.contains(id)));
          if (reads) {
            from_memory.insert(id);
          } else if (!contains(todo, definition_[id])) {
            todo.push_back(definition_[id]);
          }
        }
      }
    }
    for (ValueId id : from_memory) {
      want_in_memory(id, level, "a kernel of nested values reads its values from memory, of iteration domain ");
    }
    std::vector<size_t>& ops = building.draft.ops;
    ops.insert(ops.end(), todo.begin(), todo.end());
    std::sort(ops.begin(), ops.end());
    ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  }
  // Whether a kernel of nested values that needs a value computes it.
  bool is_computed_along(ValueId value) const {
    const Op& op = fusion_.ops[definition_[value]];
    return is_nested(value) || op.inputs.empty() || op.kind == OpKind::kBroadcast || op.kind == OpKind::kSqueeze;
  }

  void want_in_memory(ValueId value, int deadline, const char* why) {
    Want& want = wanted_[value];
    if (!want.in_memory || want.deadline > deadline) want = {true, std::min(want.deadline, deadline), why};
  }

  // Outputs that are inputs are copied by a segment of their shape.
  void copy_inputs() {
    for (ValueId id : fusion_.outputs) {
      if (!is_input_[id]) continue;
      const Key home = key(0, id);
      drafts_[home].store(id, wanted_[id].why + text(home.shape));
    }
  }

  const Fusion& fusion_;
  const Clusters clusters_;
  const Recompute recompute_;
  const std::vector<ValueId> memory_;
  const bool on_cuda_;  // where arithmetic is hidden by memory
  std::vector<bool> is_table_, is_input_;
  std::vector<int> level_;          // by value: of the kernels that can use it
  std::vector<int> cluster_level_;  // by cluster
  std::vector<size_t> definition_;  // by value: its op
  std::vector<Want> wanted_;
  std::vector<std::vector<Key>> users_;       // by value: the segments that use it in registers or load it
  std::set<std::pair<Key, ValueId>> turned_;  // values that a segment uses in another order of their axes
  std::map<Key, int> parts_;
  std::map<Key, Building> drafts_;
};

}  // namespace

std::vector<ValueId> memory_of(const Fusion& fusion) {
  std::vector<ValueId> memory(fusion.values.size());
  std::iota(memory.begin(), memory.end(), 0);
  // Kernels by hand take shapes as they come, and nested values are of no shape.
  const bool plain = std::none_of(fusion.ops.begin(), fusion.ops.end(), [&](const Op& op) {
    return op.kind == OpKind::kGroupedMatmul || ir::ragged_axis(fusion.values[op.output]) >= 0;
  });
  for (const Op& op : fusion.ops) {
    if (plain && op.kind == OpKind::kReshape && !contains(fusion.outputs, op.output)) {
      memory[op.output] = memory[op.inputs[0]];
    }
  }
  return memory;
}

std::vector<Draft> draft_segments(const Fusion& fusion, const Target& target) {
  return Drafter(fusion, target).drafts();
}

}  // namespace jf::plan
