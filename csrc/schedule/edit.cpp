#include "schedule/edit.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "ir/infer.h"
#include "ir/verify.h"
#include "schedule/axes.h"

namespace jf::schedule {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::Reduce;

class Editor {
 public:
  Editor(const Fusion& fusion, const Schedule& schedule) : fusion_(fusion), schedule_(schedule) {
    JF_CHECK(schedule.domains.size() == fusion.values.size(), "a schedule of another fusion than ", fusion.name);
  }

  // By reference: an op that is inserted moves the others.
  std::vector<Op>& ops() { return fusion_.ops; }
  const ir::Value& value(ValueId id) const { return fusion_.values[id]; }
  Domain& domain(ValueId id) { return schedule_.domains[id]; }
  const std::string& name(ValueId id) const { return fusion_.values[id].name; }

  // The number of the op that computes the value.
  std::optional<size_t> definition(ValueId id) const {
    for (size_t i = 0; i < fusion_.ops.size(); ++i) {
      if (fusion_.ops[i].output == id) return i;
    }
    return std::nullopt;
  }
  std::optional<size_t> first_use(ValueId id) const {
    for (size_t i = 0; i < fusion_.ops.size(); ++i) {
      if (contains(fusion_.ops[i].inputs, id)) return i;
    }
    return std::nullopt;
  }

  ValueId add(ir::Value value, const std::string& name, Domain domain) {
    std::set<std::string> names = {fusion_.name};
    for (const ir::Value& other : fusion_.values) names.insert(other.name);
    value.name = name;
    for (int i = 2; names.count(value.name) > 0; ++i) value.name = cat(name, "_", i);
    fusion_.values.push_back(std::move(value));
    schedule_.domains.push_back(std::move(domain));
    return static_cast<ValueId>(fusion_.values.size()) - 1;
  }
  // A value of the same type and loops, kept in registers.
  ValueId add_cache(ValueId of) {
    Domain domain = schedule_.domains[of];
    domain.memory = Memory::kRegister;
    domain.storage.clear();
    domain.pad = 0;
    domain.stages = 1;
    domain.prefetch = 0;
    for (LoopAxis& axis : domain.loop) {
      if (axis.parallel == Parallel::kBulk) axis.parallel = Parallel::kSerial;
    }
    return add(fusion_.values[of], cat(name(of), "_cache"), std::move(domain));
  }
  void insert(size_t position, Op op) {
    fusion_.ops.insert(fusion_.ops.begin() + static_cast<std::ptrdiff_t>(position), std::move(op));
  }
  void read_instead(ValueId value, ValueId by) {
    for (Op& op : fusion_.ops) std::replace(op.inputs.begin(), op.inputs.end(), value, by);
  }
  // `to` has the root axes that `from` had. `from` begins anew, inlined where it was.
  void move_roots(ValueId from, ValueId to) {
    const int inline_at = domain(from).inline_at;
    domain(from) = unscheduled(fusion_).domains[from];
    domain(from).inline_at = std::min<int>(inline_at, static_cast<int>(domain(from).loop.size()));
    for (Domain& domain : schedule_.domains) {
      for (Transform& transform : domain.transforms) {
        if (auto* insert = std::get_if<Insert>(&transform); insert != nullptr && insert->like == from)
          insert->like = to;
      }
    }
  }

  Edited finish(ValueId made) {
    for (const Op& op : fusion_.ops) {
      for (ValueId id : op.inputs) {
        domain(id).inline_at = std::min(domain(id).inline_at, common_loops(domain(id), domain(op.output)));
      }
    }
    const std::vector<ValueId> renumbered = number_as_text(fusion_, schedule_);
    Edited edited{std::move(fusion_), std::move(schedule_), renumbered[made]};
    ir::verify(edited.fusion);
    verify(edited.fusion, edited.schedule);
    return edited;
  }

  const Fusion& fusion() const { return fusion_; }

 private:
  Fusion fusion_;
  Schedule schedule_;
};

// The value is the copy of a new one from now on.
ValueId compute_before(Editor& editor, ValueId value, const char* call) {
  const std::optional<size_t> number = editor.definition(value);
  JF_REQUIRE(number.has_value(), "[", call, "] ", editor.name(value),
             " is an input, which no op computes; use cache_after");
  JF_REQUIRE(editor.ops()[*number].kind != OpKind::kCombine, "[", call, "] ", editor.name(value),
             " is combined, which is a way to store it; cache what it combines");
  const bool folds = std::holds_alternative<Reduce>(editor.ops()[*number].attribute);
  const ValueId made = editor.add_cache(value);
  editor.ops()[*number].output = made;
  editor.insert(*number + 1, {OpKind::kCopy, {made}, value, {}, ""});
  if (folds) editor.move_roots(value, made);
  editor.domain(value).scanned = -1;
  editor.domain(value).in_parts = false;
  return made;
}

// What rfactor takes apart: which axes of the operand each of the two reductions folds.
struct Stages {
  Reduce first;
  Reduce second;
};

Stages take_apart(const Reduce& whole, const ir::Value& operand, const std::set<int64_t>& first, int64_t parts) {
  Stages stages{{{first.begin(), first.end()}, parts}, {}};
  int64_t next = 0;  // axis of the first reduction's result
  for (int64_t axis = 0; axis < static_cast<int64_t>(operand.axes.size()); ++axis) {
    const bool goes = first.count(axis) > 0, is_part = parts > 0 && axis == stages.first.dims[0];
    if (goes && !is_part) continue;
    if (std::binary_search(whole.dims.begin(), whole.dims.end(), axis)) stages.second.dims.push_back(next);
    ++next;
  }
  return stages;
}

// The loop axes of a reduction that rfactor is asked to fold first, as axes of its operand.
struct FirstAxes {
  std::set<int64_t> dims;
  int64_t parts = 0;
};

FirstAxes first_axes(const Domain& domain, const std::string& value, const std::vector<int>& axes) {
  const AxisTree tree = replay(domain, value);
  const int rank = static_cast<int>(tree.loop.size());
  const bool serial = std::all_of(domain.loop.begin(), domain.loop.end(),
                                  [](const LoopAxis& axis) { return axis.parallel == Parallel::kSerial; });
  JF_REQUIRE(serial, "[rfactor] ", value, " has parallel axes already; call rfactor before parallelize");
  const Split* split = domain.transforms.empty() ? nullptr : std::get_if<Split>(&domain.transforms.front());
  const bool plain = domain.transforms.empty() || (domain.transforms.size() == 1 && split != nullptr &&
                                                   domain.reduced[static_cast<size_t>(split->axis)]);
  JF_REQUIRE(plain, "[rfactor] ", value, " has other transforms than one split of an axis that it folds; call rfactor ",
             "first and transform its two reductions after it");
  std::string folded;
  int folded_count = 0;
  for (int i = 0; i < rank; ++i) {
    if (!tree.reduced[tree.loop[i]]) continue;
    folded += cat(folded.empty() ? "" : ", ", i);
    ++folded_count;
  }
  std::set<int> chosen;
  for (int axis : axes) {
    const int positive = axis < 0 ? axis + rank : axis;
    JF_REQUIRE(positive >= 0 && positive < rank, "[rfactor] ", value, " has ", rank,
               " loop axes; expected an axis in [", -rank, ", ", rank, "), got ", axis);
    JF_REQUIRE(tree.reduced[tree.loop[positive]], "[rfactor] axis ", positive, " of ", value,
               " is not folded; expected some of its folded axes, ", folded);
    JF_REQUIRE(chosen.insert(positive).second, "[rfactor] ", value, ": axis ", positive, " is named twice");
  }
  JF_REQUIRE(!chosen.empty() && static_cast<int>(chosen.size()) < folded_count, "[rfactor] ", value, " folds its axes ",
             folded, "; expected some but not all of them, got ", chosen.size(),
             folded_count < 2 ? ": split the folded axis first" : "");
  FirstAxes first;
  for (int position : chosen) {
    const int root = split == nullptr || position <= split->axis ? position : position - 1;
    first.dims.insert(root);
  }
  if (split == nullptr) return first;
  const int outer = split->axis, inner = outer + 1;
  JF_REQUIRE(chosen.count(inner) > 0 && chosen.count(outer) == 0, "[rfactor] axes ", outer, " and ", inner, " of ",
             value, " are parts of one axis, of which rfactor can fold the inner one first; name axis ", inner,
             " and not ", outer);
  const int64_t extent = domain.logical[static_cast<size_t>(outer)], parts = domain.loop[outer].extent;
  const int64_t run = (extent + parts - 1) / parts;
  JF_REQUIRE(run == domain.loop[inner].extent, "[rfactor] axis ", outer, " of ", value, " is ", parts, " runs of ",
             domain.loop[inner].extent, " out of ", extent, " elements, which ", parts, " runs of ", run,
             " hold; use split(", outer, ", ", parts, ", inner=False)");
  JF_REQUIRE(*first.dims.begin() == outer, "[rfactor] axis ", *first.dims.begin(), " of ", value,
             " stands before the axis that is split; leave it for the second reduction");
  first.parts = parts;
  return first;
}

}  // namespace

std::vector<ValueId> number_as_text(Fusion& fusion, Schedule& schedule) {
  std::vector<ValueId> renumbered = ir::number_as_text(fusion);
  Schedule moved;
  moved.domains.resize(renumbered.size());
  for (size_t id = 0; id < renumbered.size(); ++id) {
    Domain& domain = moved.domains[renumbered[id]] = std::move(schedule.domains[id]);
    for (Ragged& ragged : domain.ragged) ragged.extents = renumbered[ragged.extents];
    for (Transform& transform : domain.transforms) {
      if (auto* insert = std::get_if<Insert>(&transform)) insert->like = renumbered[insert->like];
    }
  }
  schedule = std::move(moved);
  return renumbered;
}

Edited cache_after(const Fusion& fusion, const Schedule& schedule, ValueId value) {
  Editor editor(fusion, schedule);
  const std::optional<size_t> use = editor.first_use(value);
  JF_REQUIRE(use.has_value(), "[cache_after] no op reads ", editor.name(value), "; for an output use cache_before");
  const std::optional<size_t> number = editor.definition(value);
  const bool folds = number && std::holds_alternative<Reduce>(editor.ops()[*number].attribute);
  const ValueId made = editor.add_cache(value);
  editor.read_instead(value, made);
  editor.insert(*use, {OpKind::kCopy, {value}, made, {}, ""});
  if (folds) editor.domain(made) = unscheduled(editor.fusion()).domains[made];
  editor.domain(made).scanned = -1;
  editor.domain(made).in_parts = false;
  return editor.finish(made);
}

Edited cache_before(const Fusion& fusion, const Schedule& schedule, ValueId value) {
  Editor editor(fusion, schedule);
  return editor.finish(compute_before(editor, value, "cache_before"));
}

Edited cache_fork(const Fusion& fusion, const Schedule& schedule, ValueId output) {
  Editor editor(fusion, schedule);
  JF_REQUIRE(contains(fusion.outputs, output), "[cache_fork] ", editor.name(output),
             " is not an output; use cache_after");
  JF_REQUIRE(editor.first_use(output).has_value(), "[cache_fork] no op reads ", editor.name(output),
             "; use cache_before");
  const ValueId made = compute_before(editor, output, "cache_fork");
  for (Op& op : editor.ops()) {
    if (op.output != output) std::replace(op.inputs.begin(), op.inputs.end(), output, made);
  }
  editor.domain(output).inline_at = 0;
  return editor.finish(made);
}

Edited rfactor(const Fusion& fusion, const Schedule& schedule, ValueId value, const std::vector<int>& axes) {
  Editor editor(fusion, schedule);
  const std::string& name = fusion.values[value].name;
  const std::optional<size_t> number = editor.definition(value);
  const Reduce* whole = number ? std::get_if<Reduce>(&fusion.ops[*number].attribute) : nullptr;
  JF_REQUIRE(whole != nullptr, "[rfactor] ", name, " is not a reduction; expected a value that folds axes");
  JF_REQUIRE(whole->parts == 0, "[rfactor] ", name, " is folded in parts already; take the reduction of its parts");
  const Op& op = fusion.ops[*number];
  const DType dtype = fusion.values[value].dtype;
  const bool rounds = op.kind == OpKind::kReduceSum || op.kind == OpKind::kReduceProd;
  JF_REQUIRE(!rounds || compute_dtype(dtype) == dtype, "[rfactor] ", name, " is ", jf::name(dtype),
             ", to which its parts would be rounded; convert what it folds to ", jf::name(compute_dtype(dtype)),
             " and its result back");
  const FirstAxes chosen = first_axes(schedule.domains[value], name, axes);
  const Stages stages = take_apart(*whole, fusion.values[op.inputs[0]], chosen.dims, chosen.parts);
  const ir::Attribute attribute = stages.first;
  const ValueId made =
      editor.add(ir::infer(editor.fusion(), op.kind, op.inputs, attribute, {"", dtype, {}}), cat(name, "_parts"), {});
  editor.insert(*number, {op.kind, op.inputs, made, attribute, op.label});
  editor.ops()[*number + 1].inputs = {made};
  editor.ops()[*number + 1].attribute = stages.second;
  editor.domain(made) = unscheduled(editor.fusion()).domains[made];
  editor.move_roots(value, made);
  return editor.finish(made);
}

}  // namespace jf::schedule
