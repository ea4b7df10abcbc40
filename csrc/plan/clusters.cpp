#include "plan/clusters.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "base/bits.h"
#include "base/error.h"
#include "base/lists.h"
#include "plan/even_rows.h"
#include "plan/recompute.h"
#include "plan/runs.h"
#include "schedule/axes.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::Reduce;
using ir::ValueId;

// Each reduction is a loop over the rows; each holds registers or memory accesses of its own.
constexpr int kMaxReductions = 16, kMaxOps = 400;
constexpr int kMaxColumnFolds = 4;
// Blocks or tasks, at least, of a kernel that also folds rows: those of each part. 529 rows in runs of 5 are 106.
constexpr int64_t kEnoughBlocks = 100, kEnoughTasks = 8;
// Reductions of as few elements share a launch even where they read nothing in common.
constexpr int64_t kSmallSpace = 4 << 20;
// Bytes of what a transpose leaves side by side, for rows that a kernel of reductions stores so.
constexpr int64_t kLeastRun = 64;
constexpr ValueId kAnySource = -1;
// Of what a value is computed from, so many arrays are looked at for kernels that read them, too.
constexpr size_t kMaxSources = 8;

// The axes that a reduction folds or a scan goes along.
struct Along {
  std::vector<int64_t> dims;
  int64_t parts = 0;
  int direction = 0;  // of a scan
  bool in_turn = false;
};
std::optional<Along> along(const Op& op) {
  if (const Reduce* reduce = std::get_if<Reduce>(&op.attribute)) {
    return Along{reduce->dims, reduce->parts, 0, reduce->in_turn};
  }
  const auto* scan = std::get_if<ir::Scan>(&op.attribute);
  if (scan == nullptr) return std::nullopt;
  return Along{{scan->axis}, scan->parts, scan->reverse ? -1 : 1};
}

class Finder {
 public:
  Finder(const Fusion& fusion, const Target& target)
      : fusion_(fusion),
        target_(target),
        sources_(fusion.values.size()),
        from_product_(fusion.values.size(), false),
        sealed_(fusion.values.size(), false),
        waits_for_(fusion.values.size()) {
    result_.of.assign(fusion.values.size(), -1);
    result_.places.resize(fusion.values.size());
    for (ValueId id : fusion.inputs) sources_[id] = {id};
    for (size_t i = 0; i < fusion.ops.size(); ++i) place(i);
    join_column_folds();
  }

  Clusters finish() && {
    result_.beside.assign(fusion_.values.size(), -1);
    for (size_t id = 0; id < fusion_.values.size(); ++id) {
      const int cluster = cluster_beside(id);
      if (cluster < 0) continue;
      const Bits before = all_before(static_cast<ValueId>(id));
      if (before.test(cluster)) continue;
      result_.beside[id] = cluster;
      if (contains(fusion_.outputs, static_cast<ValueId>(id))) wait(cluster, before);
    }
    std::vector<int> number(building_.size(), -1);
    auto renumber = [&](int& cluster) {
      if (cluster < 0) return;
      cluster = find(cluster);
      if (number[cluster] < 0) {
        number[cluster] = static_cast<int>(result_.all.size());
        result_.all.push_back(building_[cluster].cluster);
      }
      cluster = number[cluster];
    };
    for (int& cluster : result_.of) renumber(cluster);
    for (int& cluster : result_.beside) renumber(cluster);
    return std::move(result_);
  }

 private:
  struct Building {
    Cluster cluster;
    int reductions = 0, ops = 0, column_folds = 0;
    Bits waits_for;  // clusters whose values it reads, directly or through others
    int merged_into = -1;
    std::vector<ValueId> sources;
    std::vector<int64_t> split_shape;  // of the operand that reductions in parts split; axes of extent 1 included
  };
  // Space and what the rows are read from.
  using Sibling = std::tuple<std::vector<int64_t>, std::vector<bool>, ValueId>;

  int find(int cluster) const {
    while (building_[cluster].merged_into >= 0) cluster = building_[cluster].merged_into;
    return cluster;
  }

  int bound_to(ValueId value) const { return result_.of[value] < 0 ? -1 : find(result_.of[value]); }

  // Clusters that a value read from memory waits for.
  Bits all_before(ValueId value) const {
    Bits all;
    auto add = [&](int cluster) {
      cluster = find(cluster);
      all.set(cluster);
      all.add(building_[cluster].waits_for);
    };
    if (const int cluster = bound_to(value); cluster >= 0) add(cluster);
    waits_for_[value].each(add);
    return all;
  }

  // Adds to a cluster, and to all that wait for it, what it waits for.
  void wait(int cluster, const Bits& before) {
    if (!building_[cluster].waits_for.add(before)) return;
    for (Building& other : building_) {
      if (other.waits_for.test(cluster)) other.waits_for.add(building_[cluster].waits_for);
    }
  }

  bool can_merge(int a, int b) const {
    const Building &first = building_[a], &second = building_[b];
    return first.cluster.space == second.cluster.space && !first.waits_for.test(b) && !second.waits_for.test(a) &&
           first.cluster.parts == 0 && second.cluster.parts == 0 &&
           first.cluster.direction * second.cluster.direction >= 0 &&
           !(first.cluster.runs && second.cluster.direction != 0) &&
           !(second.cluster.runs && first.cluster.direction != 0) &&
           !delays({a, -1, first.waits_for}, {b, -1, second.waits_for}) &&
           first.reductions + second.reductions <= kMaxReductions && first.ops + second.ops <= kMaxOps;
  }
  void merge(int into, int from) {
    Building &kept = building_[into], &gone = building_[from];
    kept.reductions += gone.reductions;
    if (gone.cluster.direction != 0) kept.cluster.direction = gone.cluster.direction;
    kept.cluster.runs |= gone.cluster.runs;
    kept.ops += gone.ops;
    kept.column_folds += gone.column_folds;
    for (ValueId source : gone.sources) note_source(into, source);
    gone.merged_into = into;
    wait(into, gone.waits_for);
    for (Building& other : building_) {
      if (!other.waits_for.test(from) && !other.waits_for.test(into)) continue;
      other.waits_for.set(into);
      other.waits_for.add(kept.waits_for);
    }
  }

  int64_t elements(ValueId value) const { return ir::elements(fusion_.values[value]); }
  static int64_t elements(const Space& space) {
    int64_t count = 1;
    for (int64_t extent : space.extents) count *= extent;
    return count;
  }

  void note_source(int cluster, ValueId source) {
    const Space& space = building_[cluster].cluster.space;
    if (source < 0 || elements(source) != elements(space)) return;
    siblings_[{space.extents, space.folded, source}] = cluster;
    building_[cluster].sources.push_back(source);
  }

  int cluster_beside(size_t id) const {
    // What follows a grouped product may become a part of its kernel.
    if (result_.of[id] >= 0 || from_product_[id]) return -1;
    const std::vector<int64_t> extents = iteration_shape(fusion_.values[id]);
    for (const ValueId source : sources_[id]) {
      const auto found = siblings_.lower_bound({extents, {}, source});
      for (auto sibling = found; sibling != siblings_.end() && std::get<0>(sibling->first) == extents; ++sibling) {
        if (std::get<2>(sibling->first) == source && stores_well(find(sibling->second), id)) {
          return find(sibling->second);
        }
      }
    }
    return -1;
  }
  // Kernels of sums across rows in parts take half as long again to store rows of odd lengths. What folds everything
  // goes through memory as it lies.
  bool stores_well(int cluster, size_t value) const {
    const Space& space = building_[cluster].cluster.space;
    return building_[cluster].cluster.parts == 0 || !contains(space.folded, false) ||
           space.extents.back() * size_of(fusion_.values[value].dtype) % 16 == 0;
  }

  // What the largest operands come from; where grouped products are among them, those alone, so that what else is read
  // with them does not bring it into other kernels than theirs. Part of an array is an array of its own.
  std::vector<ValueId> sources_of(const Op& op) const {
    if (along(op).has_value() || op.kind == OpKind::kGroupedMatmul || op.kind == OpKind::kSlice || op.inputs.empty()) {
      return {op.output};
    }
    const bool of_product =
        std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return from_product_[id]; });
    int64_t most = 0;
    for (ValueId id : op.inputs) {
      if (!sources_[id].empty()) most = std::max(most, elements(sources_[id].front()));
    }
    std::vector<ValueId> found;
    for (ValueId id : op.inputs) {
      const bool counts = of_product ? from_product_[id] : !sources_[id].empty();
      if (!counts || (!of_product && elements(sources_[id].front()) < most)) continue;
      for (ValueId source : sources_[id]) {
        if (found.size() < kMaxSources && !contains(found, source)) found.push_back(source);
      }
    }
    return found;
  }

  void place(size_t number) {
    const Op& op = fusion_.ops[number];
    sources_[op.output] = sources_of(op);
    from_product_[op.output] =
        op.kind == OpKind::kGroupedMatmul ||
        (!along(op) && std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return from_product_[id]; }));
    const bool reduces = along(op).has_value();
    // Nested values have kernels of their own.
    const auto is_nested = [&](ValueId id) { return ir::ragged_axis(fusion_.values[id]) >= 0; };
    const bool nested = is_nested(op.output) || (!op.inputs.empty() && is_nested(op.inputs[0]));
    if (reduces && !nested) return place_reduction(number);
    if (!nested && op.kind != OpKind::kGroupedMatmul && join_operands(op)) return;
    for (ValueId id : op.inputs) {
      waits_for_[op.output].add(waits_for_[id]);
      if (const int cluster = bound_to(id); cluster >= 0) waits_for_[op.output].set(cluster);
    }
  }

  // The elements of the largest space that a cluster goes through or waits for.
  int64_t largest(int cluster) const {
    int64_t most = elements(building_[cluster].cluster.space);
    building_[cluster].waits_for.each(
        [&](int other) { most = std::max(most, elements(building_[find(other)].cluster.space)); });
    return most;
  }
  // What may share a kernel: a cluster, or a reduction that is in none yet, and what it waits for.
  struct Member {
    int cluster;
    ValueId value;
    Bits before;
  };
  // Whether two had better have kernels of their own, since they are small and large values would come late.
  bool delays(const Member& a, const Member& b) const {
    return elements(building_[a.cluster].cluster.space) <= kSmallSpace && (comes_late(a, b) || comes_late(b, a));
  }
  // What a broadcast repeats counts once.
  bool is_large(ValueId value) const {
    int64_t count = 1;
    for (const ir::Axis& axis : fusion_.values[value].axes) {
      if (axis.kind != ir::AxisKind::kBroadcast) count *= axis.extent;
    }
    return count > kSmallSpace;
  }
  // Whether large results, or what is folded, need `member`, but not `other`, and are none that follow a large kernel
  // that `other` alone waits for; they may be that kernel's.
  bool comes_late(const Member& member, const Member& other) const {
    std::vector<int> large;
    other.before.each([&](int cluster) {
      const bool alone = find(cluster) == cluster && !member.before.test(cluster);
      if (alone && elements(building_[cluster].cluster.space) > kSmallSpace) large.push_back(cluster);
    });
    if (large.empty()) return false;
    const auto from = [&](const auto& is_source) {
      std::vector<bool> found(fusion_.values.size(), false);
      for (const Op& op : fusion_.ops) {
        found[op.output] = is_source(op.output) ||
                           std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return found[id]; });
      }
      return found;
    };
    const auto from_member = [&](const Member& m) {
      return from([&](ValueId id) { return id == m.value || (m.cluster >= 0 && bound_to(id) == m.cluster); });
    };
    const std::vector<bool> needs = from_member(member), waits = from_member(other),
                            follows = from([&](ValueId id) { return contains(large, bound_to(id)); });
    const auto is_late = [&](ValueId id) {
      const std::vector<int64_t> shape = iteration_shape(fusion_.values[id]);
      return needs[id] && !waits[id] && is_large(id) &&
             (!follows[id] || std::any_of(large.begin(), large.end(), [&](int cluster) {
               return building_[cluster].cluster.space.extents == shape;
             }));
    };
    return std::any_of(fusion_.outputs.begin(), fusion_.outputs.end(), is_late) ||
           std::any_of(fusion_.ops.begin(), fusion_.ops.end(),
                       [&](const Op& op) { return along(op).has_value() && is_late(op.inputs[0]); });
  }

  // Joins the latest cluster that can take the op, and a large one rather than one that would have to wait for it;
  // after merging those of its operands where that is possible.
  bool join_operands(const Op& op) {
    std::vector<int> candidates;
    for (ValueId id : op.inputs) {
      const int cluster = sealed_[id] ? -1 : bound_to(id);
      if (cluster >= 0 && !contains(candidates, cluster)) {
        candidates.push_back(cluster);
      }
    }
    std::sort(candidates.begin(), candidates.end(),
              [&](int a, int b) { return std::pair(largest(a), a) < std::pair(largest(b), b); });
    while (!candidates.empty()) {
      const int cluster = candidates.back();
      candidates.pop_back();
      const std::optional<Place> place = place_in(op, cluster);
      if (!place) continue;
      for (int other : candidates) {
        if (place_in(op, other) == place && can_merge(cluster, other)) merge(cluster, other);
      }
      if (join(op, cluster)) return true;
    }
    return false;
  }

  bool join(const Op& op, int cluster) {
    const std::optional<Place> place = place_in(op, cluster);
    if (!place || building_[cluster].ops >= kMaxOps) return false;
    Bits before;
    for (ValueId id : op.inputs) {
      if (bound_to(id) == cluster && !sealed_[id]) continue;
      before.add(all_before(id));
    }
    if (before.test(cluster)) return false;
    wait(cluster, before);
    take(op, cluster, *place);
    return true;
  }

  void take(const Op& op, int cluster, Place place) {
    result_.of[op.output] = cluster;
    result_.places[op.output] = std::move(place);
    ++building_[cluster].ops;
    for (ValueId id : op.inputs) {
      for (ValueId source : sources_[id]) note_source(cluster, source);
    }
  }

  // Where the result is in the cluster's space, from the operands that the cluster computes. New axes of a broadcast
  // are axes of the space that the operand lacks, in their order. Nothing where they are none.
  std::optional<Place> place_in(const Op& op, int cluster) const {
    if (ir::reads_memory(op.kind) || op.kind == OpKind::kConcat) return std::nullopt;
    const Space& space = building_[cluster].cluster.space;
    const std::vector<ir::Axis>& axes = fusion_.values[op.output].axes;
    std::optional<Place> found;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const ValueId id = op.inputs[i];
      if (bound_to(id) != cluster || sealed_[id]) continue;
      Place place(axes.size(), -1);
      const std::vector<int> to = schedule::result_axes(fusion_, op, i);
      for (size_t a = 0; a < to.size(); ++a) {
        if (to[a] < 0) continue;
        if (axes[to[a]].extent != fusion_.values[id].axes[a].extent) return std::nullopt;
        place[to[a]] = result_.places[id][a];
      }
      if (found && *found != place) return std::nullopt;
      found = place;
    }
    if (!found) return std::nullopt;
    int next = 0;
    for (size_t a = 0; a < axes.size(); ++a) {
      int& axis = (*found)[a];
      if (axes[a].extent == 1) continue;
      if (axis < 0) {
        if (op.kind != OpKind::kBroadcast) return std::nullopt;
        const auto later = std::find_if(found->begin() + static_cast<std::ptrdiff_t>(a), found->end(),
                                        [](int known) { return known >= 0; });
        const int end = later == found->end() ? static_cast<int>(space.extents.size()) : *later;
        while (next < end && space.extents[next] != axes[a].extent) ++next;
        if (next >= end) return std::nullopt;
        axis = next;
      }
      if (axis < next && op.kind == OpKind::kBroadcast) return std::nullopt;
      next = axis + 1;
    }
    if (op.kind == OpKind::kTranspose && !stores_runs(op, *found, space)) return std::nullopt;
    return lies_along_rows(*found, building_[cluster].cluster) ? found : std::nullopt;
  }

  static bool in_order(Place place) {
    std::erase(place, -1);
    return std::is_sorted(place.begin(), place.end());
  }

  // Whether rows go elsewhere as a whole, or in long runs: their last axis stays the last one.
  bool stores_runs(const Op& op, const Place& place, const Space& space) const {
    const int last = static_cast<int>(space.extents.size()) - 1;
    return !place.empty() && place.back() == last &&
           space.extents[last] * size_of(fusion_.values[op.output].dtype) >= kLeastRun;
  }

  void place_reduction(size_t number) {
    const Op& op = fusion_.ops[number];
    const std::vector<int64_t> along_dims = along(op)->dims;
    const ValueId operand = op.inputs[0];
    const int own = sealed_[operand] || !in_order(result_.places[operand]) ? -1 : bound_to(operand);
    // What each part of a scan begins with waits for what the part is scanned from, so it starts a kernel.
    const bool alone = along(op)->direction != 0 && along(op)->parts > 0;
    if (!alone && own >= 0 && fold(number, own, result_.places[operand])) return;

    Space space;
    Place place;
    const std::vector<ir::Axis>& axes = fusion_.values[operand].axes;
    for (size_t a = 0; a < axes.size(); ++a) {
      place.push_back(axes[a].extent == 1 ? -1 : static_cast<int>(space.extents.size()));
      if (axes[a].extent == 1) continue;
      space.extents.push_back(axes[a].extent);
      space.folded.push_back(std::binary_search(along_dims.begin(), along_dims.end(), static_cast<int64_t>(a)));
    }
    auto fold_in_sibling = [&](const std::vector<bool>& folded, ValueId source) {
      const auto sibling = siblings_.find({space.extents, folded, source});
      if (sibling == siblings_.end()) return false;
      const int cluster = find(sibling->second);
      const Bits& before = building_[cluster].waits_for;
      return !delays({cluster, -1, before}, {-1, op.output, all_before(operand)}) && fold(number, cluster, place);
    };
    std::vector<bool> others = space.folded;
    others.flip();
    const bool small = elements(space) <= kSmallSpace;
    auto reads_same = [&](const std::vector<bool>& folded) {
      const std::vector<ValueId>& sources = sources_[operand];
      return std::any_of(sources.begin(), sources.end(),
                         [&](ValueId source) { return fold_in_sibling(folded, source); });
    };
    // A run of the rows that a cluster folds whole.
    auto runs_of_same = [&] {
      const auto first = siblings_.lower_bound({space.extents, {}, std::numeric_limits<ValueId>::min()});
      for (auto s = first; s != siblings_.end() && std::get<0>(s->first) == space.extents; ++s) {
        const auto& [extents, folded, source] = s->first;
        const bool joins = contains(sources_[operand], source) && folds_runs(find(s->second), space.folded);
        if (joins && fold_in_sibling(folded, source)) return true;
      }
      return false;
    };
    const bool joined = !alone && (reads_same(space.folded) || reads_same(others) || runs_of_same() ||
                                   (small && fold_in_sibling(space.folded, kAnySource)));
    if (joined) return;
    const int cluster = static_cast<int>(building_.size());
    building_.emplace_back().cluster.space = space;
    if (small && !alone) siblings_[{space.extents, space.folded, kAnySource}] = cluster;
    const bool folded = fold(number, cluster, place);
    JF_CHECK(folded, "a cluster refuses its own reduction ", fusion_.values[op.output].name);
  }

  // Takes a reduction whose operand has the given place, if its axes are those that the cluster folds; in parts also if
  // they are all the others.
  bool fold(size_t number, int cluster, const Place& operand) {
    const Op& op = fusion_.ops[number];
    const Along reduce = *along(op);
    Building& building = building_[cluster];
    const Space& space = building.cluster.space;
    if (building.reductions >= kMaxReductions || building.ops >= kMaxOps) return false;
    Place dims;
    std::vector<bool> folded(space.extents.size(), false);
    for (int64_t dim : reduce.dims) {
      dims.push_back(operand[dim]);
      if (operand[dim] >= 0) folded[operand[dim]] = true;
    }
    std::vector<bool> others = space.folded;
    others.flip();
    const bool whole = folded == space.folded;
    // What has no columns, say a loss of each row, has loops of its own.
    const bool has_columns =
        std::any_of(operand.begin(), operand.end(), [&](int axis) { return axis >= 0 && space.folded[axis]; });
    const bool across =
        reduce.parts > 0 && reduce.direction == 0 && folded == others && has_columns && building.reductions > 0;
    const bool run = reduce.parts == 0 && reduce.direction == 0 && folds_runs(cluster, folded);
    if (!whole && !across && !run) return false;
    if (building.cluster.runs && (reduce.parts > 0 || reduce.direction != 0)) return false;
    // One kernel goes along its rows one way.
    if (reduce.direction * building.cluster.direction < 0) return false;
    if (reduce.direction != 0 && reduce.parts == 0 && building.cluster.parts > 0) return false;
    if (reduce.parts > 0) {
      JF_CHECK(dims[0] >= 0, "parts of an axis of extent 1");
      const Cluster& c = building.cluster;
      const bool first = whole && building.reductions == 0;
      if (!first && c.parts == 0 && whole) return false;
      const bool same_split = c.parts == reduce.parts && c.in_turn == reduce.in_turn && c.split_axis == dims[0] &&
                              building.split_shape == ir::shape(fusion_.values[op.inputs[0]]);
      if (c.parts > 0 && !same_split) return false;
      if (across && !takes_column_fold(cluster, reduce.parts)) return false;
    } else if (building.cluster.split_axis >= 0 && space.folded[building.cluster.split_axis]) {
      return false;  // the kernel sees no whole row
    }
    if (bound_to(op.inputs[0]) != cluster || sealed_[op.inputs[0]]) {
      const Bits before = all_before(op.inputs[0]);
      if (before.test(cluster)) return false;
      wait(cluster, before);
    }
    if (reduce.parts > 0) {
      building_[cluster].cluster.parts = reduce.parts;
      building_[cluster].cluster.in_turn = reduce.in_turn;
      building_[cluster].cluster.split_axis = dims[0];
      building_[cluster].split_shape = ir::shape(fusion_.values[op.inputs[0]]);
      building_[cluster].column_folds += across;
    }
    if (reduce.direction != 0) building_[cluster].cluster.direction = reduce.direction;
    building_[cluster].cluster.runs |= run;
    record(number, cluster, operand, std::move(dims));
    return true;
  }
  void record(size_t number, int cluster, const Place& operand, Place dims) {
    const Op& op = fusion_.ops[number];
    ++building_[cluster].reductions;
    if (!std::holds_alternative<Reduce>(op.attribute)) return take(op, cluster, operand);
    const Reduce& reduce = std::get<Reduce>(op.attribute);
    Place place;
    for (size_t a = 0; a < operand.size(); ++a) {
      const auto dim = static_cast<int64_t>(a);
      const bool goes = std::binary_search(reduce.dims.begin(), reduce.dims.end(), dim);
      if (!goes || (reduce.parts > 0 && dim == reduce.dims[0])) place.push_back(operand[a]);
    }
    sealed_[op.output] = reduce.parts > 0;
    result_.folds[number] = std::move(dims);
    take(op, cluster, std::move(place));
  }

  // Whether a reduction of these axes folds runs of the cluster's rows, and they had better be folded together.
  bool folds_runs(int cluster, const std::vector<bool>& folded) const {
    const Cluster& c = building_[cluster].cluster;
    return target_.platform == Platform::kCuda && c.parts == 0 && c.direction == 0 &&
           building_[cluster].reductions > 0 && are_runs(c.space, folded);
  }

  bool takes_column_fold(int cluster, int64_t parts) const {
    const Building& building = building_[cluster];
    int64_t row = 1;
    for (size_t a = 0; a < building.cluster.space.extents.size(); ++a) {
      if (building.cluster.space.folded[a]) row *= building.cluster.space.extents[a];
    }
    int64_t widest = 1;
    for (ValueId id : building.sources) widest = std::max<int64_t>(widest, size_of(fusion_.values[id].dtype));
    const bool innermost = building.cluster.space.folded.back();
    const int64_t enough = target_.platform == Platform::kCpu ? kEnoughTasks : kEnoughBlocks;
    const bool fits = parts * blocks_of_row(row, widest, has_clusters(target_)) >= enough;
    return innermost && fits && building.cluster.direction == 0 && !building.cluster.runs &&
           building.column_folds < kMaxColumnFolds;
  }

  // Column folds that came before the rows of the same values were folded.
  void join_column_folds() {
    for (int c = 0; c < static_cast<int>(building_.size()); ++c) {
      Building& columns = building_[c];
      if (columns.merged_into >= 0 || columns.cluster.parts == 0 || columns.cluster.direction != 0 ||
          columns.column_folds > 0 || !columns.cluster.space.folded[columns.cluster.split_axis] ||
          columns.ops != columns.reductions) {
        continue;
      }
      Space rows = columns.cluster.space;
      rows.folded.flip();
      const std::vector<ValueId> sources = columns.sources;
      for (ValueId source : sources) {
        const auto sibling = siblings_.find({rows.extents, rows.folded, source});
        if (sibling == siblings_.end()) continue;
        const int into = find(sibling->second);
        Building& kept = building_[into];
        const bool same_parts =
            kept.cluster.parts == 0 ||
            (kept.cluster.parts == columns.cluster.parts && kept.cluster.in_turn == columns.cluster.in_turn &&
             kept.cluster.split_axis == columns.cluster.split_axis && kept.split_shape == columns.split_shape);
        const bool fits =
            kept.column_folds + columns.reductions <= kMaxColumnFolds && takes_column_fold(into, columns.cluster.parts);
        if (!same_parts || !fits || kept.waits_for.test(c) || columns.waits_for.test(into)) continue;
        kept.cluster.parts = columns.cluster.parts;
        kept.cluster.in_turn = columns.cluster.in_turn;
        kept.cluster.split_axis = columns.cluster.split_axis;
        kept.split_shape = columns.split_shape;
        columns.column_folds = columns.reductions;
        merge(into, c);
        break;
      }
    }
  }

  const Fusion& fusion_;
  const Target& target_;
  Clusters result_;
  std::vector<std::vector<ValueId>> sources_;  // by value: the memory or counters that most of it comes from
  std::vector<bool> from_product_;             // by value: element by element from a grouped product
  std::vector<bool> sealed_;                   // by value: parts, which only memory can hand on
  std::vector<Bits> waits_for_;                // by free value: clusters whose values it is computed from
  std::vector<Building> building_;
  std::map<Sibling, int> siblings_;
};

}  // namespace

Clusters find_clusters(const Fusion& fusion, const Target& target) { return Finder(fusion, target).finish(); }

}  // namespace jf::plan
