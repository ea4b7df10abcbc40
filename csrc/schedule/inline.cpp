// Where values are computed among each other's loops: inline_at, inline_most.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "base/union_find.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::schedule {
namespace {

// Which values share loops, so far, and whether the loops can still run one after the other.
class SharedLoops {
 public:
  SharedLoops(const ir::Fusion& fusion, const Schedule& schedule) : fusion_(fusion), schedule_(schedule) {}

  // Lets values share their outermost `level` loops, unless some loop would then wait for a value that is complete only
  // after it.
  bool share(int level, const std::vector<ValueId>& values) {
    while (static_cast<int>(groups_.size()) < level) groups_.emplace_back(static_cast<int>(fusion_.values.size()));
    UnionFind together = groups_[level - 1];
    // The first value is new among the others, its consumers; alone it ties nothing that was not tied.
    bool consumers_tied = true;
    for (size_t i = 2; i < values.size(); ++i) consumers_tied &= together.find(values[1]) == together.find(values[i]);
    for (ValueId id : values) together.unite(id, values[0]);
    if (!consumers_tied && !in_order(level, together, values[0])) return false;
    groups_[level - 1] = std::move(together);
    return true;
  }

 private:
  bool in_order(int level, UnionFind& groups, ValueId placed) const {
    std::set<std::pair<int, int>> edges;
    for (const ir::Op& op : fusion_.ops) {
      const int to = groups.find(op.output);
      for (ValueId id : op.inputs) {
        const int from = groups.find(id);
        const bool whole = !schedule_.domains[id].reduced.empty() || schedule_.domains[id].memory == Memory::kShared ||
                           scan_position(schedule_.domains[id], fusion_.values[id].name) >= 0;
        if (from != to) edges.emplace(from, to);
        if (from == to && whole && id != placed && schedule_.domains[id].inline_at < level) return false;
      }
    }
    const size_t count = fusion_.values.size();
    std::vector<int> waits(count, 0), ready;
    for (const auto& [from, to] : edges) ++waits[to];
    for (size_t g = 0; g < count; ++g) {
      if (waits[g] == 0) ready.push_back(static_cast<int>(g));
    }
    size_t done = 0;
    for (; done < ready.size(); ++done) {
      for (auto edge = edges.lower_bound({ready[done], 0}); edge != edges.end() && edge->first == ready[done]; ++edge) {
        if (--waits[edge->second] == 0) ready.push_back(edge->second);
      }
    }
    return done == count;
  }

  const ir::Fusion& fusion_;
  const Schedule& schedule_;
  std::vector<UnionFind> groups_;  // by level, from 1
};

// Along blocks of a cluster each has its own part in its own memory, whether inlined or not.
bool is_own_part(const Domain& domain, int l) { return domain.loop[l].parallel == Parallel::kCluster; }
bool runs_together(Parallel parallel) { return is_serial(parallel) || is_block(parallel); }

}  // namespace

int Scheduler::common_loops(ValueId value) const {
  const Domain& domain = schedule_.domains[value];
  // A fold or a scan by threads that nothing reads is an output, stored where it is complete.
  const bool complete_later = !domain.reduced.empty() || scan_position(domain, fusion_.values[value].name) >= 0;
  const bool stored_here = consumers_[value].empty() && !complete_later;
  int common = stored_here ? 0 : static_cast<int>(domain.loop.size());
  for (ValueId consumer : consumers_[value]) {
    common = std::min(common, schedule::common_loops(domain, schedule_.domains[consumer]));
  }
  return common;
}

void Scheduler::inline_at(ValueId value, int position, bool best_effort) {
  Domain& target = domain(value, "inline_at");
  const int common = common_loops(value);
  if (best_effort) position = std::min(position, common);
  JF_REQUIRE(position >= 0 && position <= common, "[inline_at] ", fusion_.values[value].name, " agrees in ", common,
             " outer loop axes with its consumers; expected a position in [0, ", common, "], got ", position);
  target.inline_at = position;
}

// The loops inside of which a value may be computed without doing it more often than needed, and a fold only outside of
// the loops that it folds.
int Scheduler::useful_loops(const ir::Op& op) const {
  const Domain& domain = schedule_.domains[op.output];
  const int rank = static_cast<int>(domain.loop.size());
  const AxisTree tree = replay(domain, fusion_.values[op.output].name);
  if (domain.memory == Memory::kShared) {
    // One thread begins the copy, in any loop that all threads of the block run together.
    if (is_bulk(domain)) {
      int common = 0;
      while (common < rank && runs_together(domain.loop[common].parallel)) ++common;
      while (common > 0 && (tree.inserted[tree.loop[common - 1]] || is_own_part(domain, common - 1))) --common;
      return common;
    }
    // The threads of a block compute it together, before any of them reads it.
    int blocks = 0;
    while (blocks < rank && is_block(domain.loop[blocks].parallel)) ++blocks;
    return blocks;
  }
  int useful = rank;
  while (useful > 0 && tree.inserted[tree.loop[useful - 1]]) --useful;
  // A result that others read is stored once, not for each of their rows.
  const bool is_stored = contains(fusion_.outputs, op.output);
  for (int i = 0; is_stored && i < useful; ++i) {
    if (tree.inserted[tree.loop[i]] && is_serial(domain.loop[i].parallel)) useful = i;
  }
  if (const int scan = scan_position(domain, fusion_.values[op.output].name); scan >= 0) return std::min(useful, scan);
  for (int i = 0; i < useful; ++i) {
    if (tree.reduced[tree.loop[i]]) return i;
  }
  return useful;
}

void Scheduler::inline_most(const std::vector<ValueId>& selected) {
  SharedLoops shared(fusion_, schedule_);
  for (auto op = fusion_.ops.rbegin(); op != fusion_.ops.rend(); ++op) {
    std::vector<ValueId> values = {op->output};
    values.insert(values.end(), consumers_[op->output].begin(), consumers_[op->output].end());
    const int most = std::min(common_loops(op->output), useful_loops(*op));
    int& position = schedule_.domains[op->output].inline_at;
    if (!selected.empty() && !contains(selected, op->output)) {
      for (int level = 1; level <= position; ++level) shared.share(level, values);
      continue;
    }
    for (position = 0; position < most && shared.share(position + 1, values);) ++position;
  }
}

}  // namespace jf::schedule
