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

// For each root axis of a value, the reference's root axis that has the same index, or kNone, or kParts for the parts
// of a reference that folds in parts, which the value folds.
using Alignment = std::vector<int>;
constexpr int kNone = -1, kParts = -2;

// Whether the value has axes that the reference lacks; their places in the loops are behind.
bool is_partial(const Domain& domain, const Alignment& alignment) {
  for (size_t i = 0; i < alignment.size(); ++i) {
    if (alignment[i] < 0 && domain.logical[i] != 1) return true;
  }
  return false;
}
bool folds_parts(const Alignment& alignment) { return contains(alignment, kParts); }

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
// one consumer of an input to another, since they may read it at different places. `partly`: at last it goes on to
// values that have axes that the reference lacks.
class Aligner {
 public:
  Aligner(const ir::Fusion& fusion, const std::vector<Domain>& domains, ValueId reference, bool partly)
      : fusion_(fusion), domains_(domains), reference_(reference), found_(fusion.values.size()) {
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
      if (found_[op.inputs[0]]->alignment.size() != domains[op.output].logical.size()) continue;
      if (domains[op.inputs[0]].in_parts && !domains[op.inputs[0]].reduced.empty()) continue;
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
    if (!partly) return;
    partly_ = true;
    for (ValueId id = 0; id < static_cast<ValueId>(found_.size()); ++id) {
      if (!found_[id]) continue;
      if (definition[id] >= 0) to_operands(fusion.ops[definition[id]], *found_[id]);
      for (int use : uses[id]) {
        if (!is_input[id]) to_result(fusion.ops[use], {0, 0, id, *found_[id]});
      }
    }
    walk();
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
      if (!partly_ && axis < 0 && domains_[value].logical[i] != 1) return;  // its place in the loops would be a guess
      mapped += axis != kNone;
    }
    queue_.push({mapped, pushed_++, value, std::move(found)});
  }
  void to_operands(const ir::Op& op, const Found& result) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const Domain& domain = domains_[op.inputs[i]];
      Alignment operand(domain.logical.size(), -1);
      bool apart = false;
      const std::vector<int> axes = result_axes(fusion_, op, i), nodes = axis_nodes(fusion_, domain, op.inputs[i]);
      for (size_t a = 0; a < axes.size(); ++a) {
        if (axes[a] >= 0 && is_root(domain, nodes[a])) operand[nodes[a]] = result.alignment[axes[a]];
        // Its parts are an axis of the reference, which it cannot have twice.
        apart = apart || (partly_ && axes[a] >= 0 && !is_root(domain, nodes[a]) && result.alignment[axes[a]] != kNone);
      }
      if (apart) continue;
      push(op.inputs[i], {std::move(operand), result.anchor});
    }
  }
  void to_result(const ir::Op& op, const Candidate& from) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] != from.value) continue;
      Alignment result(domains_[op.output].logical.size(), -1);
      bool apart = false;  // as above
      const Domain& domain = domains_[from.value];
      const std::vector<int> axes = result_axes(fusion_, op, i), nodes = axis_nodes(fusion_, domain, from.value);
      for (size_t a = 0; a < axes.size(); ++a) {
        if (axes[a] >= 0 && is_root(domain, nodes[a])) result[axes[a]] = from.found.alignment[nodes[a]];
        if (!partly_ || axes[a] < 0 || is_root(domain, nodes[a])) continue;
        if (has_parts_of_reference(domain, from.found.alignment)) {
          result[axes[a]] = kParts;
        } else {
          apart = apart || from.found.alignment[std::get<Split>(domain.transforms.front()).axis] != kNone;
        }
      }
      if (apart) continue;
      push(op.output, {std::move(result), from.found.anchor});
    }
  }

  bool has_parts_of_reference(const Domain& domain, const Alignment& alignment) const {
    const Domain& reference = domains_[reference_];
    if (!domain.in_parts || !reference.in_parts || reference.reduced.empty()) return false;
    const Split& own = std::get<Split>(domain.transforms.front());
    const Split& other = std::get<Split>(reference.transforms.front());
    return alignment[own.axis] == other.axis && own.factor == other.factor && own.inner == other.inner;
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
  const ValueId reference_;
  bool partly_ = false;
  std::vector<std::optional<Found>> found_;
  std::priority_queue<Candidate> queue_;
  int64_t pushed_ = 0;
};

// The order with `count` more axes behind it as they are.
Reorder extended(Reorder reorder, int count) {
  for (; count > 0; --count) reorder.order.push_back(static_cast<int>(reorder.order.size()));
  return reorder;
}

// The transforms that give a value the loop axes of the reference, and behind them those that the reference lacks.
std::vector<Transform> align(const Domain& domain, const Alignment& given, const std::vector<Insert>& inserts,
                             const std::vector<Transform>& of_reference) {
  Alignment alignment = given;
  std::vector<int64_t> extents = domain.logical;
  std::vector<Transform> transforms;
  if (domain.in_parts) {
    const Split& parts = std::get<Split>(domain.transforms.front());
    if (alignment[parts.axis] == kNone) {
      transforms.push_back(parts);
      alignment.insert(alignment.begin() + parts.axis, kNone);
      extents.insert(extents.begin() + parts.axis, extents[parts.axis]);
    }
  }
  const int rank = static_cast<int>(alignment.size());
  std::vector<int> order;
  std::vector<bool> present(inserts.size(), false);
  for (int i = 0; i < rank; ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return static_cast<unsigned>(alignment[a]) < static_cast<unsigned>(alignment[b]);  // -1 goes last
  });
  if (!std::is_sorted(order.begin(), order.end())) transforms.push_back(Reorder{order});
  int behind = 0;
  for (int i = rank - 1; i >= 0; --i) {
    if (alignment[order[i]] >= 0) {
      present[alignment[order[i]]] = true;
    } else if (extents[order[i]] == 1) {
      transforms.push_back(Drop{i});
    } else {
      ++behind;
    }
  }
  for (size_t axis = 0; axis < inserts.size(); ++axis) {
    if (!present[axis]) transforms.push_back(inserts[axis]);
  }
  for (const Transform& transform : of_reference) {
    const auto* reorder = std::get_if<Reorder>(&transform);
    transforms.push_back(reorder == nullptr ? transform : extended(*reorder, behind));
  }
  return transforms;
}

// For a value that folds the parts of the reference: the transforms of those axes of the reference that it has. Nothing
// where two axes become one of which it has only one, or folds only one.
std::optional<std::vector<Transform>> transforms_on_parts(const Domain& domain, const Alignment& alignment,
                                                          const Domain& like, const std::string& reference) {
  if (domain.in_parts) return std::nullopt;  // its own come first
  const int rank = static_cast<int>(alignment.size());
  const int cut = std::get<Split>(like.transforms.front()).axis;
  const auto at_reference = [&](int own) { return alignment[own] == kParts ? cut : alignment[own]; };
  std::vector<int> order;
  for (int i = 0; i < rank; ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return static_cast<unsigned>(at_reference(a)) < static_cast<unsigned>(at_reference(b));
  });
  std::vector<Transform> transforms;
  if (!std::is_sorted(order.begin(), order.end())) transforms.push_back(Reorder{order});
  Domain unchanged = like;
  unchanged.transforms.resize(1);
  AxisTree tree = replay(unchanged, reference);
  std::vector<bool> has(tree.extents.size(), false), folds = has;  // by node of the reference
  int behind = 0;
  for (int i = rank - 1; i >= 0; --i) {
    const int axis = alignment[order[i]];
    if (axis != kNone) {
      const int node = axis == kParts ? part_node(like) : axis;
      has[node] = true;
      folds[node] = !domain.reduced.empty() && domain.reduced[order[i]];
    } else if (domain.logical[order[i]] == 1) {
      transforms.push_back(Drop{i});
    } else {
      ++behind;
    }
  }
  const auto own = [&](int position) {
    return static_cast<int>(
        std::count_if(tree.loop.begin(), tree.loop.begin() + position, [&](int node) { return has[node]; }));
  };
  for (size_t i = 1; i < like.transforms.size(); ++i) {
    const Transform& transform = like.transforms[i];
    std::vector<int> read;  // positions
    std::optional<Transform> moved;
    if (const auto* split = std::get_if<Split>(&transform)) {
      read = {split->axis};
      moved = Split{own(split->axis), split->factor, split->inner};
    } else if (const auto* merge = std::get_if<Merge>(&transform)) {
      read = {merge->axis, merge->axis + 1};
      moved = Merge{own(merge->axis)};
    } else if (const auto* swizzle = std::get_if<Swizzle>(&transform)) {
      read = {swizzle->x, swizzle->y};
      moved = Swizzle{own(swizzle->x), own(swizzle->y)};
    } else if (const auto* drop = std::get_if<Drop>(&transform)) {
      read = {drop->axis};
      moved = Drop{own(drop->axis)};
    } else if (const auto* reorder = std::get_if<Reorder>(&transform)) {
      Reorder kept;
      for (int from : reorder->order) {
        if (has[tree.loop[from]]) kept.order.push_back(own(from));
      }
      transforms.push_back(extended(std::move(kept), behind));
    }
    const auto is_own = [&](int position) { return static_cast<bool>(has[tree.loop[position]]); };
    const bool all = std::all_of(read.begin(), read.end(), is_own), any = std::any_of(read.begin(), read.end(), is_own);
    const bool folded = !read.empty() && folds[tree.loop[read.front()]];
    if (!read.empty() && (all != any || folded != folds[tree.loop[read.back()]])) return std::nullopt;
    if (moved && all) transforms.push_back(*moved);
    apply(tree, transform, reference);
    has.resize(tree.extents.size(), all && !read.empty());
    folds.resize(tree.extents.size(), folded);
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

// What to do about a value with axes that the reference lacks.
std::string also_folds(const Domain& domain, const Alignment& alignment, const std::string& value) {
  std::string axes;
  for (size_t i = 0; i < domain.reduced.size(); ++i) {
    if (domain.reduced[i] && alignment[i] < 0) axes += cat(axes.empty() ? "" : ", ", i);
  }
  return axes.empty() ? "schedule it by itself"
                      : cat(value, " also folds axis ", axes, ": use ", value, " as the reference");
}

// The axes of a value with transforms like those of the reference. Throws UserError unless the outer ones have the
// extents of its loops.
AxisTree replay_like(const Domain& domain, const Domain& like, const Alignment& alignment, const std::string& value,
                     const std::string& reference) {
  AxisTree tree;
  try {
    tree = replay(domain, value);
  } catch (const UserError& error) {
    throw UserError(cat("[transform_like] ", value, " cannot have the loops of ", reference, ": ", error.what(), "; ",
                        also_folds(domain, alignment, value)));
  }
  bool same = tree.loop.size() >= like.loop.size();
  for (size_t i = 0; same && i < like.loop.size(); ++i) same = tree.extents[tree.loop[i]] == like.loop[i].extent;
  JF_REQUIRE(same, "[transform_like] ", value, " cannot have the loops of ", reference,
             ": its axes have other extents; ", also_folds(domain, alignment, value));
  return tree;
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

// The same for the first fold that has such axes.
std::string also_folds(const ir::Fusion& fusion, const std::vector<Domain>& domains, const Aligner& aligner) {
  for (ValueId id = 0; id < static_cast<ValueId>(domains.size()); ++id) {
    const std::optional<Found>& found = aligner[id];
    if (found && !domains[id].reduced.empty() && is_partial(domains[id], found->alignment)) {
      return also_folds(domains[id], found->alignment, fusion.values[id].name);
    }
  }
  return "schedule it by itself";
}

// What to do about a value that is not found: what folds parts has their axis only together with what they fold.
std::string parts_apart(const ir::Fusion& fusion, const std::vector<Domain>& domains, const Aligner& aligner) {
  for (const ir::Op& op : fusion.ops) {
    const Domain& domain = domains[op.output];
    if (domain.reduced.empty() || !domain.in_parts || aligner[op.output]) continue;
    return cat(fusion.values[op.output].name, " folds in parts: use it as the reference");
  }
  return "schedule it by itself";
}

// How many outer loops have the same extents.
int64_t common_extents(const std::vector<LoopAxis>& a, const std::vector<LoopAxis>& b) {
  const auto same = [](const LoopAxis& x, const LoopAxis& y) { return x.extent == y.extent; };
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same).first - a.begin();
}

// Whether the outer loops of a value that has axes that the reference lacks can stand for those of the reference: they
// fold nothing.
bool may_have_more(const Domain& domain, size_t count, const std::string& value) {
  const AxisTree tree = replay(domain, value);
  return std::none_of(tree.loop.begin(), tree.loop.begin() + static_cast<std::ptrdiff_t>(count),
                      [&](int node) { return static_cast<bool>(tree.reduced[node]); });
}

}  // namespace

void Scheduler::transform_like(ValueId reference, const std::vector<ValueId>& selected, bool partly) {
  const Domain like = domain(reference, "transform_like");
  const std::string& reference_name = fusion_.values[reference].name;
  const Aligner aligner(fusion_, schedule_.domains, reference, partly);
  const std::vector<bool> is_input = flags(fusion_, fusion_.inputs), is_output = flags(fusion_, fusion_.outputs);
  Schedule changed = schedule_;
  for (ValueId id = 0; id < static_cast<ValueId>(fusion_.values.size()); ++id) {
    if (id == reference || (is_input[id] && !is_output[id]) || !is_selected(selected, id)) continue;
    const std::string& name = fusion_.values[id].name;
    Domain& domain = changed.domains[id];
    const std::optional<Found>& found = aligner[id];
    JF_REQUIRE(found.has_value(), "[transform_like] ", name, " (", ir::print_type(fusion_, fusion_.values[id]),
               ") shares no axes with ", reference_name, " (", ir::print_type(fusion_, fusion_.values[reference]),
               "); ", parts_apart(fusion_, schedule_.domains, aligner));
    const Alignment& alignment = found->alignment;
    AxisTree tree;
    if (folds_parts(alignment)) {
      auto own = transforms_on_parts(domain, alignment, like, reference_name);
      if (!own && selected.empty()) continue;
      JF_REQUIRE(own.has_value(), "[transform_like] ", name, " folds the parts of ", reference_name,
                 ", where they are one axis with others that it does not fold; schedule it by itself");
      domain.transforms = std::move(*own);
      tree = replay(domain, name);
    } else {
      domain.transforms =
          align(domain, alignment, axes_to_insert(like.logical, reference, *aligner[found->anchor]), like.transforms);
      const bool same_parts =
          !domain.in_parts ||
          (!domain.transforms.empty() && domain.transforms.front() == schedule_.domains[id].transforms.front());
      JF_REQUIRE(same_parts, "[transform_like] ", name, " is folded in parts; ", reference_name,
                 " must begin with the same split: take a value folded in as many parts as reference");
      tree = replay_like(domain, like, alignment, name, reference_name);
    }
    JF_REQUIRE(keeps_storage(schedule_.domains[id], domain, name), "[transform_like] ", name,
               " is stored over axes that it would no longer have; leave it out of `selected`, ",
               "or call set_memory and set_allocation afterwards");
    domain.loop.clear();
    for (int node : tree.loop) domain.loop.push_back({tree.extents[node]});
    domain.inline_at = 0;
  }
  schedule_ = std::move(changed);
}

std::vector<ValueId> Scheduler::alike(ValueId reference) {
  domain(reference, "alike");
  const Aligner aligner(fusion_, schedule_.domains, reference, /*partly=*/false);
  const std::vector<bool> is_input = flags(fusion_, fusion_.inputs), is_output = flags(fusion_, fusion_.outputs);
  std::vector<ValueId> found;
  for (ValueId id = 0; id < static_cast<ValueId>(fusion_.values.size()); ++id) {
    if (id != reference && (!is_input[id] || is_output[id]) && aligner[id]) found.push_back(id);
  }
  return found;
}

void Scheduler::parallelize_like(ValueId reference, const std::vector<ValueId>& selected, std::optional<int> position,
                                 const std::vector<Parallel>& types, bool partly) {
  const std::vector<LoopAxis> like = domain(reference, "parallelize_like").loop;
  const int rank = static_cast<int>(like.size());
  JF_REQUIRE(!position || (*position >= 0 && *position <= rank), "[parallelize_like] ", fusion_.values[reference].name,
             " has ", rank, " loop axes; expected a position in [0, ", rank, "], got ", position.value_or(0));
  std::optional<Aligner> aligner;
  if (partly) aligner.emplace(fusion_, schedule_.domains, reference, partly);
  const std::vector<bool> is_input = flags(fusion_, fusion_.inputs), is_output = flags(fusion_, fusion_.outputs);
  Schedule changed = schedule_;
  for (ValueId id = 0; id < static_cast<ValueId>(fusion_.values.size()); ++id) {
    Domain& domain = changed.domains[id];
    if ((is_input[id] && !is_output[id]) || !is_selected(selected, id)) continue;
    size_t count = position.value_or(rank);
    const Found* found = aligner && (*aligner)[id] ? &*(*aligner)[id] : nullptr;
    const bool has_more = found != nullptr && is_partial(domain, found->alignment);
    const bool folds_them = has_more && folds_parts(found->alignment);
    if (folds_them) count = std::min<size_t>(count, common_extents(domain.loop, like));
    bool same = position || has_more ? domain.loop.size() >= count : domain.loop.size() == count;
    for (size_t l = 0; same && l < count; ++l) same = domain.loop[l].extent == like[l].extent;
    if (!same) continue;
    if (has_more && !folds_them && !may_have_more(domain, count, fusion_.values[id].name)) continue;
    const std::vector<LoopAxis> before = domain.loop;
    for (size_t l = 0; l < count; ++l) {
      const bool copied = types.empty() || contains(types, like[l].parallel);
      if (copied) domain.loop[l].parallel = like[l].parallel;
      const bool inside = has_more && copied && like[l].parallel == Parallel::kVector && l + 1 < domain.loop.size();
      JF_REQUIRE(!inside, "[parallelize_like] axis ", l, " of ", fusion_.values[reference].name, " is vector, but ",
                 fusion_.values[id].name, " has another axis inside of it, where lanes are innermost; ",
                 also_folds(fusion_, schedule_.domains, *aligner));
    }
    if (domain.loop == before) continue;
    check_parallel(domain, fusion_.values[id].name);
    domain.inline_at = 0;
  }
  schedule_ = std::move(changed);
}

}  // namespace jf::schedule
