#include "lower/allocation.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "base/lists.h"
#include "schedule/axes.h"

namespace jf::lower {
namespace {

using schedule::AxisTree;
using schedule::MergeStep;
using schedule::SplitStep;
using schedule::SwizzleStep;

// Extends `known` by all axes whose indices follow from those of known ones.
void follow(const AxisTree& tree, std::vector<bool>& known) {
  bool more = true;
  auto tells = [&](std::initializer_list<int> from, std::initializer_list<int> to) {
    if (!std::all_of(from.begin(), from.end(), [&](int node) { return known[node]; })) return;
    for (int node : to) {
      more = more || !known[node];
      known[node] = true;
    }
  };
  while (more) {
    more = false;
    for (const schedule::Step& step : tree.steps) {
      if (const SplitStep* s = std::get_if<SplitStep>(&step)) {
        tells({s->input}, {s->outer, s->inner});
        tells({s->outer, s->inner}, {s->input});
      } else if (const MergeStep* m = std::get_if<MergeStep>(&step)) {
        tells({m->outer, m->inner}, {m->output});
        tells({m->output}, {m->outer, m->inner});
      } else if (const SwizzleStep* w = std::get_if<SwizzleStep>(&step)) {
        tells({w->x, w->y}, {w->output});
        tells({w->x, w->output}, {w->y});
      }
    }
  }
}

// By node: whether the axis is `of` or was made of it.
std::vector<bool> made_of(const AxisTree& tree, int of) {
  std::vector<bool> made(tree.extents.size(), false);
  made[of] = true;
  for (const schedule::Step& step : tree.steps) {
    if (const SplitStep* s = std::get_if<SplitStep>(&step)) made[s->outer] = made[s->inner] = made[s->input];
    if (const MergeStep* m = std::get_if<MergeStep>(&step)) made[m->output] = made[m->outer] || made[m->inner];
    if (const SwizzleStep* w = std::get_if<SwizzleStep>(&step)) made[w->output] = made[w->y];
    made[of] = true;
  }
  return made;
}

// By node: whether the value is the same along a part of the axis, but not along all of it.
std::vector<bool> partly_inserted(const AxisTree& tree) {
  std::vector<bool> partly(tree.extents.size(), false);
  for (const schedule::Step& step : tree.steps) {
    if (const SplitStep* s = std::get_if<SplitStep>(&step)) partly[s->outer] = partly[s->inner] = partly[s->input];
    if (const MergeStep* m = std::get_if<MergeStep>(&step)) {
      const bool differ = tree.inserted[m->outer] != tree.inserted[m->inner];
      partly[m->output] = partly[m->outer] || partly[m->inner] || differ;
    }
    if (const SwizzleStep* w = std::get_if<SwizzleStep>(&step)) {
      partly[w->output] = partly[w->x] || partly[w->y] || tree.inserted[w->x] != tree.inserted[w->y];
    }
  }
  return partly;
}

}  // namespace

std::string how_to_inline(const ir::Fusion& segment, const schedule::Schedule& schedule, ir::ValueId value, int l) {
  const schedule::Domain& domain = schedule.domains[value];
  const std::string& name = segment.values[value].name;
  for (const ir::Op& op : segment.ops) {
    const schedule::Domain& consumer = schedule.domains[op.output];
    const auto at = static_cast<size_t>(schedule::common_loops(domain, consumer));
    if (!contains(op.inputs, value) || static_cast<int>(at) > l) continue;
    const std::string& reader = segment.values[op.output].name;
    const bool same_extent = at < consumer.loop.size() && consumer.loop[at].extent == domain.loop[at].extent;
    if (!same_extent)
      return cat("its consumer ", reader, " has no such axis ", at, "; call transform_like(", name, ")");
    return cat("its consumer ", reader, " has axis ", at, " ", schedule::name(consumer.loop[at].parallel), " where ",
               name, " has it ", schedule::name(domain.loop[at].parallel), "; call parallelize_like(", name,
               ", types=[", schedule::name(domain.loop[at].parallel), "]), then inline_most()");
  }
  return cat("call inline_at(", l + 1, ")");
}

void check_allocation(const ir::Fusion& segment, const schedule::Schedule& schedule, ir::ValueId value) {
  const schedule::Domain& domain = schedule.domains[value];
  if (domain.memory != schedule::Memory::kShared) return;
  const std::string& name = segment.values[value].name;
  const AxisTree tree = schedule::replay(domain, name);
  for (int l = 0; l < static_cast<int>(domain.loop.size()); ++l) {
    const auto [extent, parallel] = domain.loop[l];
    JF_REQUIRE(!is_thread(parallel) || l >= domain.inline_at, "[lower] ", name,
               " is shared between threads, but inlined at ", domain.inline_at, " inside of its ",
               schedule::name(parallel), " axis ", l, ", where each thread has its own; inline it at most at ", l,
               " or keep it in registers");
    // Bulk copies bring each block of a cluster its own part.
    const bool own = parallel == schedule::Parallel::kCluster && schedule::is_bulk(domain) && domain.storage.empty();
    JF_REQUIRE(!is_block(parallel) || own || l < domain.inline_at || extent == 1 || tree.inserted[tree.loop[l]],
               "[lower] ", name, " is shared by the threads of one block, but its ", schedule::name(parallel), " axis ",
               l, " runs over all of them before any of it is read; ", how_to_inline(segment, schedule, value, l));
  }
  if (domain.storage.empty()) return;  // it follows from the loops
  for (size_t i = 0; i < domain.storage.size(); ++i) {
    const std::vector<bool> made = made_of(tree, domain.storage[i]);
    for (size_t j = 0; j < domain.storage.size(); ++j) {
      JF_REQUIRE(i == j || !made[domain.storage[j]], "[lower] ", name, " is stored over its axis ", domain.storage[i],
                 " and over axis ", domain.storage[j], ", which is made of it; name each element once");
    }
  }
  const std::vector<bool> partly = partly_inserted(tree);
  for (int l = 0; l < domain.inline_at; ++l) {
    const int loop = tree.loop[l];
    if (tree.extents[loop] == 1 || (!tree.inserted[loop] && !partly[loop])) continue;
    for (int node : domain.storage) {
      JF_REQUIRE(!partly[node], "[lower] ", name, " is stored over its axis ", node,
                 ", along part of which it is the same, and inlined in its loop axis ", l,
                 " over such a part; inline it less, or store it over other axes");
    }
  }
  std::vector<bool> known(tree.extents.size(), false);
  for (size_t node = 0; node < known.size(); ++node) known[node] = tree.inserted[node] || tree.extents[node] == 1;
  for (int node : domain.storage) known[node] = true;
  for (int l = 0; l < domain.inline_at; ++l) known[tree.loop[l]] = true;
  follow(tree, known);
  for (size_t l = 0; l < tree.loop.size(); ++l) {
    JF_REQUIRE(known[tree.loop[l]], "[lower] ", name, " is inlined at ", domain.inline_at, " and not stored over its ",
               "loop axis ", l, ", whose ", tree.extents[tree.loop[l]],
               " elements would share one place; call set_allocation(", l, ") or inline it deeper");
  }
}

}  // namespace jf::lower
