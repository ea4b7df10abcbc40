// Calls that carry one value's loops to others: transform_like, parallelize_like.
#include <algorithm>
#include <optional>
#include <queue>

#include "base/error.h"
#include "base/lists.h"
#include "ir/text.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::schedule {
namespace {

// For each root axis of a value, the reference's root axis that has the same index, or -1.
using Alignment = std::vector<int>;

std::vector<bool> flags(const ir::Fusion& fusion, const std::vector<ValueId>& ids) {
  std::vector<bool> set(fusion.values.size(), false);
  for (ValueId id : ids) set[id] = true;
  return set;
}

bool is_selected(const std::vector<ValueId>& selected, ValueId id) {
  return selected.empty() || contains(selected, id);
}

// For an output that no op connects with the reference: axes longer than 1 correspond in order. Nothing where they do
// not.
std::optional<Alignment> align_by_position(const std::vector<int64_t>& extents, const std::vector<int64_t>& reference) {
  Alignment alignment;
  if (extents == reference) {
    for (size_t i = 0; i < extents.size(); ++i) alignment.push_back(static_cast<int>(i));
    return alignment;
  }
  size_t next = 0;
  for (int64_t extent : extents) {
    while (extent != 1 && next < reference.size() && reference[next] == 1) ++next;
    const bool fits = extent == 1 || (next < reference.size() && reference[next] == extent);
    if (!fits) return std::nullopt;
    alignment.push_back(extent == 1 ? -1 : static_cast<int>(next++));
  }
  while (next < reference.size() && reference[next] == 1) ++next;
  return next == reference.size() ? std::optional(alignment) : std::nullopt;
}

// How a value stands to the reference. `anchor` is the reference or the output that leads to it by position.
struct Found {
  Alignment alignment;
  ValueId anchor;
};

// Walks from the reference through ops in both directions, the path that keeps most axes first. It does not pass from
// one consumer of an input to another, since they may read it at different places.
class Aligner {
 public:
  Aligner(const ir::Fusion& fusion, const std::vector<Domain>& domains, ValueId reference)
      : fusion_(fusion), domains_(domains), found_(fusion.values.size()) {
    const std::vector<bool> is_input = flags(fusion, fusion.inputs);
    std::vector<std::vector<int>> uses(fusion.values.size());
    std::vector<int> definition(fusion.values.size(), -1);
    for (size_t i = 0; i < fusion.ops.size(); ++i) {
      definition[fusion.ops[i].output] = static_cast<int>(i);
      for (ValueId id : fusion.ops[i].inputs) uses[id].push_back(static_cast<int>(i));
    }
    auto walk = [&] {
      while (!queue_.empty()) {
        const Candidate best = queue_.top();
        queue_.pop();
        if (found_[best.value]) continue;
        found_[best.value] = best.found;
        if (definition[best.value] >= 0) to_operands(fusion.ops[definition[best.value]], best.found);
        if (is_input[best.value]) continue;
        for (int use : uses[best.value]) to_result(fusion.ops[use], best);
      }
    };
    Alignment identity;
    for (size_t i = 0; i < domains[reference].logical.size(); ++i) identity.push_back(static_cast<int>(i));
    push(reference, {std::move(identity), reference});
    walk();
    // A fold of an input is aligned through it, since its results say nothing of what it folds.
    for (const ir::Op& op : fusion.ops) {
      if (found_[op.output] || ir::info(op.kind).op_class != ir::OpClass::kReduce || !found_[op.inputs[0]]) continue;
      push(op.output, *found_[op.inputs[0]]);
      walk();
    }
    auto by_position = [&](ValueId id) {
      if (found_[id]) return;
      auto alignment = align_by_position(domains[id].logical, domains[reference].logical);
      if (alignment) {
        turn_as_read(id, uses[id], domains[reference].logical, *alignment);
        push(id, {std::move(*alignment), id});
      }
      walk();
    };
    for (const ir::Op& op : fusion.ops) {
      if (ir::info(op.kind).op_class == ir::OpClass::kReduce) by_position(op.output);
    }
    // What is turned has its axes in the order of the others' before.
    for (const ir::Op& op : fusion.ops) {
      if (op.kind == ir::OpKind::kTranspose && !found_[op.output]) by_position(op.inputs[0]);
    }
    for (ValueId id : fusion.outputs) by_position(id);
  }

  const std::optional<Found>& operator[](ValueId value) const { return found_[value]; }

 private:
  struct Candidate {
    int mapped;
    int64_t order;
    ValueId value;
    Found found;
    // The queue gives the greatest first.
    bool operator<(const Candidate& other) const {
      return mapped != other.mapped ? mapped < other.mapped : order > other.order;
    }
  };

  void push(ValueId value, Found found) {
    if (found_[value]) return;
    int mapped = 0;
    for (size_t i = 0; i < found.alignment.size(); ++i) {
      const int axis = found.alignment[i];
      if (axis < 0 && domains_[value].logical[i] != 1) return;  // its place in the loops would be a guess
      mapped += axis >= 0;
    }
    queue_.push({mapped, pushed_++, value, std::move(found)});
  }
  void to_operands(const ir::Op& op, const Found& result) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const Domain& domain = domains_[op.inputs[i]];
      Alignment operand(domain.logical.size(), -1);
      const std::vector<int> axes = result_axes(fusion_, op, i), nodes = axis_nodes(fusion_, domain, op.inputs[i]);
      for (size_t a = 0; a < axes.size(); ++a) {
        if (axes[a] >= 0 && is_root(domain, nodes[a])) operand[nodes[a]] = result.alignment[axes[a]];
      }
      push(op.inputs[i], {std::move(operand), result.anchor});
    }
  }
  void to_result(const ir::Op& op, const Candidate& from) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] != from.value) continue;
      Alignment result(domains_[op.output].logical.size(), -1);
      const Domain& domain = domains_[from.value];
      const std::vector<int> axes = result_axes(fusion_, op, i), nodes = axis_nodes(fusion_, domain, from.value);
      for (size_t a = 0; a < axes.size(); ++a) {
        if (axes[a] >= 0 && is_root(domain, nodes[a])) result[axes[a]] = from.found.alignment[nodes[a]];
      }
      push(op.output, {std::move(result), from.found.anchor});
    }
  }

  // Of a fold whose readers have its axes in another order than its own the folded ones have what places are left.
  void turn_as_read(ValueId id, const std::vector<int>& uses, const std::vector<int64_t>& reference,
                    Alignment& alignment) const {
    const Domain& domain = domains_[id];
    const std::vector<int> nodes = axis_nodes(fusion_, domain, id);
    for (const int use : uses) {
      const ir::Op& op = fusion_.ops[use];
      if (!found_[op.output]) continue;
      Alignment read(alignment.size(), -1);
      const std::vector<int> axes =
          result_axes(fusion_, op, std::find(op.inputs.begin(), op.inputs.end(), id) - op.inputs.begin());
      bool differs = false;
      for (size_t a = 0; a < axes.size(); ++a) {
        if (axes[a] < 0 || !is_root(domain, nodes[a])) continue;
        read[nodes[a]] = found_[op.output]->alignment[axes[a]];
        differs = differs || (read[nodes[a]] >= 0 && read[nodes[a]] != alignment[nodes[a]]);
      }
      if (!differs) continue;
      for (size_t i = 0; i < read.size(); ++i) {
        for (int axis = 0; read[i] < 0 && domain.logical[i] != 1 && axis < std::ssize(reference); ++axis) {
          if (reference[axis] == domain.logical[i] && !contains(read, axis)) read[i] = axis;
        }
      }
      alignment = std::move(read);
      return;
    }
  }

  static bool is_root(const Domain& domain, int node) { return node < static_cast<int>(domain.logical.size()); }

  const ir::Fusion& fusion_;
  const std::vector<Domain>& domains_;
  std::vector<std::optional<Found>> found_;
  std::priority_queue<Candidate> queue_;
  int64_t pushed_ = 0;
};

// The transforms that give a value the loop axes that the reference has before its own transforms.
std::vector<Transform> align(const Alignment& alignment, const std::vector<Insert>& axes_to_insert) {
  const int rank = static_cast<int>(alignment.size());
  std::vector<int> order;
  std::vector<bool> present(axes_to_insert.size(), false);
  for (int i = 0; i < rank; ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return static_cast<unsigned>(alignment[a]) < static_cast<unsigned>(alignment[b]);  // -1 goes last
  });
  std::vector<Transform> transforms;
  if (!std::is_sorted(order.begin(), order.end())) transforms.push_back(Reorder{order});
  for (int i = rank - 1; i >= 0; --i) {
    if (alignment[order[i]] < 0) {
      transforms.push_back(Drop{i});
    } else {
      present[alignment[order[i]]] = true;
    }
  }
  for (size_t axis = 0; axis < axes_to_insert.size(); ++axis) {
    if (!present[axis]) transforms.push_back(axes_to_insert[axis]);
  }
  return transforms;
}

// Whether the axes that a value is stored over are made by the same transforms in both domains.
bool keeps_storage(const Domain& before, const Domain& after, const std::string& value) {
  Domain common = before;
  const auto [end, other] = std::mismatch(before.transforms.begin(), before.transforms.end(), after.transforms.begin(),
                                          after.transforms.end());
  common.transforms.assign(before.transforms.begin(), end);
  const int nodes = static_cast<int>(replay(common, value).extents.size());
  return std::all_of(before.storage.begin(), before.storage.end(), [&](int node) { return node < nodes; });
}

// Throws UserError unless the transforms of a value give it the loops of the reference.
void check_like(const Domain& domain, const Domain& like, const std::string& value, const std::string& reference) {
  AxisTree tree;
  try {
    tree = replay(domain, value);
  } catch (const UserError& error) {
    throw UserError(cat("[transform_like] ", value, " cannot have the loops of ", reference, ": ", error.what()));
  }
  bool same = tree.loop.size() == like.loop.size();
  for (size_t i = 0; same && i < tree.loop.size(); ++i) same = tree.extents[tree.loop[i]] == like.loop[i].extent;
  JF_REQUIRE(same, "[transform_like] ", value, " cannot have the loops of ", reference,
             ": its axes have other extents; schedule it by itself");
}

// What stands for each axis of the reference where a value lacks it: an axis of the value's anchor, which its consumers
// have.
std::vector<Insert> axes_to_insert(const std::vector<int64_t>& extents, ValueId reference, const Found& anchor) {
  std::vector<Insert> inserts;
  for (size_t i = 0; i < extents.size(); ++i) {
    const int axis = static_cast<int>(i);
    const auto own = std::find(anchor.alignment.begin(), anchor.alignment.end(), axis);
    const bool has = own != anchor.alignment.end();
    inserts.push_back({axis, has ? anchor.anchor : reference,
                       has ? static_cast<int>(own - anchor.alignment.begin()) : axis, extents[i]});
  }
  return inserts;
}

}  // namespace

void Scheduler::transform_like(ValueId reference, const std::vector<ValueId>& selected) {
  const Domain like = domain(reference, "transform_like");
  const Aligner aligner(fusion_, schedule_.domains, reference);
  const std::vector<bool> is_input = flags(fusion_, fusion_.inputs), is_output = flags(fusion_, fusion_.outputs);
  Schedule changed = schedule_;
  for (ValueId id = 0; id < static_cast<ValueId>(fusion_.values.size()); ++id) {
    if (id == reference || (is_input[id] && !is_output[id]) || !is_selected(selected, id)) continue;
    Domain& domain = changed.domains[id];
    const std::optional<Found>& found = aligner[id];
    JF_REQUIRE(found.has_value(), "[transform_like] ", fusion_.values[id].name, " (",
               ir::print_type(fusion_, fusion_.values[id]), ") shares no axes with ", fusion_.values[reference].name,
               " (", ir::print_type(fusion_, fusion_.values[reference]), "); schedule it by itself");
    domain.transforms = align(found->alignment, axes_to_insert(like.logical, reference, *aligner[found->anchor]));
    domain.transforms.insert(domain.transforms.end(), like.transforms.begin(), like.transforms.end());
    const bool same_parts = !domain.in_parts || (!domain.transforms.empty() &&
                                                 domain.transforms.front() == schedule_.domains[id].transforms.front());
    JF_REQUIRE(same_parts, "[transform_like] ", fusion_.values[id].name, " is folded in parts; ",
               fusion_.values[reference].name,
               " must begin with the same split: take a value folded in as many parts as reference");
    check_like(domain, like, fusion_.values[id].name, fusion_.values[reference].name);
    JF_REQUIRE(keeps_storage(schedule_.domains[id], domain, fusion_.values[id].name), "[transform_like] ",
               fusion_.values[id].name,
               " is stored over axes that it would no longer have; leave it out of `selected`, ",
               "or call set_memory and set_allocation afterwards");
    domain.loop.assign(like.loop.size(), LoopAxis{});
    for (size_t i = 0; i < like.loop.size(); ++i) domain.loop[i].extent = like.loop[i].extent;
    domain.inline_at = 0;
  }
  schedule_ = std::move(changed);
}

std::vector<ValueId> Scheduler::alike(ValueId reference) {
  domain(reference, "alike");
  const Aligner aligner(fusion_, schedule_.domains, reference);
  const std::vector<bool> is_input = flags(fusion_, fusion_.inputs), is_output = flags(fusion_, fusion_.outputs);
  std::vector<ValueId> found;
  for (ValueId id = 0; id < static_cast<ValueId>(fusion_.values.size()); ++id) {
    if (id != reference && (!is_input[id] || is_output[id]) && aligner[id]) found.push_back(id);
  }
  return found;
}

void Scheduler::parallelize_like(ValueId reference, const std::vector<ValueId>& selected, std::optional<int> position,
                                 const std::vector<Parallel>& types) {
  const std::vector<LoopAxis> like = domain(reference, "parallelize_like").loop;
  const int rank = static_cast<int>(like.size());
  JF_REQUIRE(!position || (*position >= 0 && *position <= rank), "[parallelize_like] ", fusion_.values[reference].name,
             " has ", rank, " loop axes; expected a position in [0, ", rank, "], got ", position.value_or(0));
  const size_t count = position.value_or(rank);
  const std::vector<bool> is_input = flags(fusion_, fusion_.inputs), is_output = flags(fusion_, fusion_.outputs);
  Schedule changed = schedule_;
  for (ValueId id = 0; id < static_cast<ValueId>(fusion_.values.size()); ++id) {
    Domain& domain = changed.domains[id];
    if ((is_input[id] && !is_output[id]) || !is_selected(selected, id)) continue;
    bool same = position ? domain.loop.size() >= count : domain.loop.size() == count;
    for (size_t l = 0; same && l < count; ++l) same = domain.loop[l].extent == like[l].extent;
    if (!same) continue;
    const std::vector<LoopAxis> before = domain.loop;
    for (size_t l = 0; l < count; ++l) {
      const bool copied = types.empty() || contains(types, like[l].parallel);
      if (copied) domain.loop[l].parallel = like[l].parallel;
    }
    if (domain.loop == before) continue;
    check_parallel(domain, fusion_.values[id].name);
    domain.inline_at = 0;
  }
  schedule_ = std::move(changed);
}

}  // namespace jf::schedule
