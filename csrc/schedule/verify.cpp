#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/integers.h"
#include "ir/text.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::schedule {
namespace {

constexpr int64_t kMaxVector = 64;

}  // namespace

void check_parallel(const Domain& domain, const std::string& value) {
  std::array<int, kParallelTypes> count{};
  const int rank = static_cast<int>(domain.loop.size());
  int64_t unrolled = 1;
  for (int i = 0; i < rank; ++i) {
    const auto [extent, parallel] = domain.loop[i];
    if (parallel == Parallel::kUnroll) {
      JF_REQUIRE(extent <= kMaxUnroll, "[parallelize] axis ", i, " of ", value, " has extent ", extent,
                 "; an unroll axis has at most ", kMaxUnroll, ", split first");
      unrolled *= extent;
      JF_REQUIRE(unrolled <= kMaxUnroll, "[parallelize] the unroll axes of ", value, " have ", unrolled,
                 " iterations together; at most ", kMaxUnroll, ", leave the outer one serial");
    }
    const bool repeats = is_serial(parallel) || parallel == Parallel::kBulk;
    JF_REQUIRE(++count[static_cast<size_t>(parallel)] == 1 || repeats, "[parallelize] ", value, " has a second ",
               name(parallel), " axis, ", i, "; merge the two first");
    if (parallel == Parallel::kVector) {
      JF_REQUIRE(i + 1 == rank, "[parallelize] axis ", i, " of ", value, " of ", rank,
                 ": only the innermost axis can be vector; reorder first");
      JF_REQUIRE(is_power_of_two(extent) && extent <= kMaxVector, "[parallelize] axis ", i, " of ", value,
                 " has extent ", extent, "; a vector axis needs a power of two up to ", kMaxVector, ", split first");
    }
    JF_REQUIRE(i <= first_bulk(domain) || parallel == Parallel::kBulk, "[parallelize] axis ", i, " of ", value,
               " is inside of a bulk axis: one instruction copies all of the innermost axes; reorder first");
  }
}

void check_stages(const Domain& domain, const std::string& value) {
  const int stages = domain.stages, prefetch = domain.prefetch;
  JF_REQUIRE(stages >= 1 && stages <= kMaxStages, "[circular_buffer] ", value, ": expected 1 to ", kMaxStages,
             " stages, got ", stages);
  const int least = stages == 1 ? 0 : 1;
  JF_REQUIRE(prefetch >= least && prefetch < stages, "[circular_buffer] ", value, ": with ", stages,
             " stages expected a prefetch of ", least, " to ", stages - 1, " iterations, got ", prefetch);
  JF_REQUIRE(stages == 1 || domain.memory == Memory::kShared, "[circular_buffer] ", value,
             " is kept in registers; call set_memory(shared) first");
}

int first_bulk(const Domain& domain) {
  const auto found = std::find_if(domain.loop.begin(), domain.loop.end(),
                                  [](const LoopAxis& axis) { return axis.parallel == Parallel::kBulk; });
  return static_cast<int>(found - domain.loop.begin());
}

int common_loops(const Domain& a, const Domain& b) {
  const auto [end_a, end_b] = std::mismatch(a.loop.begin(), a.loop.end(), b.loop.begin(), b.loop.end());
  return static_cast<int>(end_a - a.loop.begin());
}

void verify(const ir::Fusion& fusion, const Schedule& schedule) {
  JF_REQUIRE(schedule.domains.size() == fusion.values.size(), "[schedule] expected a domain for each of the ",
             fusion.values.size(), " values of ", fusion.name, ", got ", schedule.domains.size());
  const Schedule unchanged = unscheduled(fusion);
  for (size_t id = 0; id < fusion.values.size(); ++id) {
    const Domain& domain = schedule.domains[id];
    const std::string& value = fusion.values[id].name;
    const Domain& start = unchanged.domains[id];
    const bool same_roots = domain.logical == start.logical && domain.reduced == start.reduced &&
                            domain.ragged == start.ragged && domain.in_parts == start.in_parts &&
                            domain.scanned == start.scanned && domain.transforms.size() >= start.transforms.size() &&
                            std::equal(start.transforms.begin(), start.transforms.end(), domain.transforms.begin());
    JF_REQUIRE(same_roots, "[schedule] ", value, " has other axes in the schedule than in the fusion, where it is ",
               ir::print_type(fusion.values[id]));
    for (const Transform& transform : domain.transforms) {
      const Insert* insert = std::get_if<Insert>(&transform);
      if (insert == nullptr) continue;
      const bool value_known = insert->like >= 0 && insert->like < static_cast<ValueId>(fusion.values.size());
      const std::vector<int64_t> roots = value_known ? unchanged.domains[insert->like].logical : std::vector<int64_t>{};
      const bool known = insert->like_axis >= 0 && insert->like_axis < static_cast<int>(roots.size());
      JF_REQUIRE(known && roots[insert->like_axis] == insert->extent, "[insert] ", value, ": value ", insert->like,
                 " has no axis ", insert->like_axis, " of extent ", insert->extent);
    }
    const AxisTree tree = replay(domain, value);
    bool same = tree.loop.size() == domain.loop.size();
    for (size_t i = 0; same && i < tree.loop.size(); ++i) same = tree.extents[tree.loop[i]] == domain.loop[i].extent;
    JF_REQUIRE(same, "[schedule] the loop axes of ", value, " are not what its transforms give");
    check_parallel(domain, value);
    for (int node : domain.storage) {
      JF_REQUIRE(node >= 0 && node < static_cast<int>(tree.extents.size()), "[set_allocation] ", value, " has no axis ",
                 node, " among its ", tree.extents.size(), " axes and their parts");
    }
    JF_REQUIRE(domain.pad >= 0 && domain.pad <= kMaxPad, "[set_allocation] ", value, ": expected a pad of 0 to ",
               kMaxPad, " elements, got ", domain.pad);
    check_stages(domain, value);
    JF_REQUIRE(domain.inline_at >= 0 && domain.inline_at <= static_cast<int>(domain.loop.size()), "[inline_at] ", value,
               " has ", domain.loop.size(), " loop axes; cannot inline at ", domain.inline_at);
  }
}

void verify_inlined(const ir::Fusion& fusion, const Schedule& schedule) {
  for (const ir::Op& op : fusion.ops) {
    for (ValueId id : op.inputs) {
      const Domain& domain = schedule.domains[id];
      if (domain.inline_at == 0) continue;
      const int common = common_loops(domain, schedule.domains[op.output]);
      JF_REQUIRE(domain.inline_at <= common, "[inline_at] ", fusion.values[id].name, " is inlined at ",
                 domain.inline_at, " but agrees only in ", common, " loop axes with its consumer ",
                 fusion.values[op.output].name);
    }
  }
}

}  // namespace jf::schedule
