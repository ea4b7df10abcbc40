#include "lower/loop_tree.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "base/union_find.h"
#include "lower/scan.h"

namespace jf::lower {
namespace {

using ir::Fusion;
using ir::Op;
using ir::ValueId;
using schedule::AxisTree;
using schedule::Domain;
using schedule::Schedule;

class Arranger {
 public:
  Arranger(const Fusion& fusion, const Schedule& schedule) : fusion_(fusion), schedule_(schedule) {
    list_items();
    direct_scans();
    share_loops();
    drop_repeats();
  }

  LoopTree run() && {
    std::vector<int> all(tree_.items.size());
    std::iota(all.begin(), all.end(), 0);
    tree_.body = arrange(all, 0);
    for (Item& item : tree_.items) {
      for (int& loop : item.loops) loop = loop < 0 ? -1 : find(loop);
    }
    check_folds();
    return std::move(tree_);
  }

 private:
  // A fold is complete after its loops, so nothing in them can read it.
  void check_folds() const {
    for (size_t i = 0; i < tree_.items.size(); ++i) {
      const std::vector<int> way = path(tree_.items[i]);
      for (int number : waits_[i]) {
        const Item& fold = tree_.items[number];
        for (size_t l = fold.shared; is_complete_later(fold, schedule_) && l < fold.loops.size(); ++l) {
          const bool inside = fold.loops[l] >= 0 && contains(way, fold.loops[l]);
          JF_REQUIRE(!inside, "[lower] ", fusion_.values[tree_.items[i].value].name, " reads ",
                     fusion_.values[fold.value].name, " inside of loop ", l, " that ",
                     is_fold(fold) ? "folds" : "scans", " it; inline less");
        }
      }
    }
  }

  const Domain& domain(const Item& item) const { return schedule_.domains[item.value]; }

  void list_items() {
    item_of_.assign(fusion_.values.size(), -1);
    for (const Op& op : fusion_.ops) {
      item_of_[op.output] = static_cast<int>(tree_.items.size());
      tree_.items.push_back({&op, op.output, 0, {}, schedule_.domains[op.output].inline_at});
      std::vector<int> waits;
      for (ValueId id : op.inputs) {
        if (item_of_[id] >= 0) waits.push_back(item_of_[id]);
      }
      waits_.push_back(std::move(waits));
    }
    for (size_t i = 0; i < fusion_.outputs.size(); ++i) {
      const ValueId id = fusion_.outputs[i];
      tree_.items.push_back({nullptr, id, i, {}});
      waits_.push_back(item_of_[id] < 0 ? std::vector<int>{} : std::vector<int>{item_of_[id]});
    }
    int count = 0;
    for (Item& item : tree_.items) {
      for (const schedule::LoopAxis& axis : domain(item).loop) {
        item.loops.push_back(count++);
        tree_.loops.push_back({axis.extent, axis.parallel, 0});
      }
    }
    same_loops_ = UnionFind(count);
  }

  void direct_scans() {
    for (const Item& item : tree_.items) {
      if (!is_scan(item)) continue;
      for (int position : scan_loops(tree_, item, schedule_).carrying) {
        tree_.loops[item.loops[position]].direction = std::get<ir::Scan>(item.op->attribute).reverse ? -1 : 1;
      }
    }
  }

  // A value and its consumers share its inlined loops; an output is stored where it is computed, or where its folds
  // end.
  void share_loops() {
    for (size_t i = 0; i < tree_.items.size(); ++i) {
      const Item& consumer = tree_.items[i];
      for (int producer_number : waits_[i]) {
        const Item& producer = tree_.items[producer_number];
        const bool whole = consumer.op == nullptr && !is_complete_later(producer, schedule_);
        const size_t shared = whole ? producer.loops.size() : producer.shared;
        for (size_t l = 0; l < shared; ++l) unite(producer.loops[l], consumer.loops[l]);
      }
    }
  }

  // A loop runs where some item in it changes along it.
  void drop_repeats() {
    std::vector<bool> runs(tree_.loops.size(), false);
    for (const Item& item : tree_.items) {
      const AxisTree tree = schedule::replay(domain(item), fusion_.values[item.value].name);
      for (size_t l = 0; l < item.loops.size(); ++l) {
        const int node = tree.loop[l];
        const bool once = tree.inserted[node] || (item.op == nullptr && tree.reduced[node]);
        if (!once) runs[find(item.loops[l])] = true;
      }
    }
    for (Item& item : tree_.items) {
      for (int& loop : item.loops) loop = runs[find(loop)] ? loop : -1;
      // One thread begins bulk copies, in loops of its own.
      if (!schedule::is_bulk(domain(item))) continue;
      const bool loads = domain(item).memory == schedule::Memory::kShared;
      std::fill(item.loops.begin() + (loads ? item.shared : schedule::first_bulk(domain(item))), item.loops.end(), -1);
    }
  }

  int find(int loop) { return same_loops_.find(loop); }
  void unite(int a, int b) {
    const int x = tree_.loops[find(a)].direction, y = tree_.loops[find(b)].direction;
    JF_REQUIRE(x * y >= 0, "[lower] ", fusion_.name, " scans values in opposite directions in one loop of ",
               tree_.loops[a].extent, " iterations; inline less, or compute one of them in a fusion of its own");
    same_loops_.unite(a, b);
    tree_.loops[find(a)].direction = x != 0 ? x : y;
  }

  // Items that stand together at one level: those of one loop, or one item.
  struct Cluster {
    int loop;  // -1 for an item
    std::vector<int> items;
    std::set<int> after;  // clusters that come before
  };

  std::vector<Node> arrange(const std::vector<int>& items, size_t level) {
    std::vector<Cluster> clusters = group(items, level);
    std::vector<Node> nodes;
    for (int number : order(clusters)) {
      const Cluster& cluster = clusters[number];
      Node node;
      if (cluster.loop < 0) {
        node.item = cluster.items[0];
      } else {
        node.loop = find(cluster.loop);
        node.body = arrange(cluster.items, level + 1);
      }
      nodes.push_back(std::move(node));
    }
    return nodes;
  }

  std::vector<Cluster> group(const std::vector<int>& items, size_t level) {
    std::vector<Cluster> clusters;
    std::map<int, int> of_loop, of_item;
    for (int number : items) {
      const std::vector<int> way = path(tree_.items[number]);
      const int loop = level < way.size() ? find(way[level]) : -1;
      int cluster = static_cast<int>(clusters.size());
      if (loop >= 0) cluster = of_loop.emplace(loop, cluster).first->second;
      if (cluster == static_cast<int>(clusters.size())) clusters.push_back({loop, {}, {}});
      clusters[cluster].items.push_back(number);
      of_item[number] = cluster;
    }
    for (int number : items) {
      for (int before : waits_[number]) {
        const auto found = of_item.find(before);
        if (found != of_item.end() && found->second != of_item[number]) {
          clusters[of_item[number]].after.insert(found->second);
        }
      }
    }
    return clusters;
  }

  // An order in which each cluster comes after those that it waits for. Equal loops become one where no iteration waits
  // for another one.
  std::vector<int> order(std::vector<Cluster>& clusters) {
    const int count = static_cast<int>(clusters.size());
    std::vector<std::vector<int>> before(count);
    std::vector<int> missing(count);
    std::set<std::pair<int, int>> ready;  // by first item
    for (int c = 0; c < count; ++c) {
      missing[c] = static_cast<int>(clusters[c].after.size());
      for (int other : clusters[c].after) before[other].push_back(c);
      if (missing[c] == 0) ready.emplace(clusters[c].items[0], c);
    }
    std::vector<int> result, place(count, -1);
    int placed = 0;
    while (!ready.empty()) {
      const int c = ready.begin()->second;
      ready.erase(ready.begin());
      ++placed;
      int last = -1;
      for (int other : clusters[c].after) last = std::max(last, place[other]);
      for (int p = static_cast<int>(result.size());
           clusters[c].loop >= 0 && place[c] < 0 && --p >= std::max(last, 0);) {
        if (!equal_loops(clusters[c], clusters[result[p]])) continue;
        if (p == last && !waits_by_iteration(clusters[c], clusters[result[p]])) continue;
        unite(clusters[c].loop, clusters[result[p]].loop);
        std::vector<int>& items = clusters[result[p]].items;
        items.insert(items.end(), clusters[c].items.begin(), clusters[c].items.end());
        std::sort(items.begin(), items.end());
        place[c] = p;
      }
      if (place[c] < 0) {
        place[c] = static_cast<int>(result.size());
        result.push_back(c);
      }
      for (int next : before[c]) {
        if (--missing[next] == 0) ready.emplace(clusters[next].items[0], next);
      }
    }
    if (placed < count) refuse(clusters, missing);
    return result;
  }

  // Whether all that `user` reads of `producer` is there after the same iteration: no fold, no other thread's, and the
  // same axis of both.
  bool waits_by_iteration(const Cluster& user, const Cluster& producer) {
    const std::set<int> made(producer.items.begin(), producer.items.end());
    for (int number : user.items) {
      for (int before : waits_[number]) {
        if (made.count(before) == 0) continue;
        const Item& from = tree_.items[before];
        const bool shared = schedule_.domains[from.value].memory == schedule::Memory::kShared;
        if (is_complete_later(from, schedule_) || shared ||
            position(from, producer.loop) != position(tree_.items[number], user.loop))
          return false;
      }
    }
    return true;
  }
  size_t position(const Item& item, int loop) {
    size_t p = 0;
    while (item.loops[p] < 0 || find(item.loops[p]) != find(loop)) ++p;
    return p;
  }

  bool equal_loops(const Cluster& a, const Cluster& b) {
    if (a.loop < 0 || b.loop < 0) return false;
    const Loop &x = tree_.loops[find(a.loop)], &y = tree_.loops[find(b.loop)];
    if (x.extent != y.extent || x.parallel != y.parallel || x.direction * y.direction < 0) return false;
    return x.parallel != schedule::Parallel::kVector || lane_extent(a) == lane_extent(b);
  }
  // Lanes of one loop end at one place.
  int64_t lane_extent(const Cluster& cluster) const {
    const Item& item = tree_.items[cluster.items[0]];
    const AxisTree tree = schedule::replay(domain(item), fusion_.values[item.value].name);
    for (const schedule::Step& step : tree.steps) {
      const auto* split = std::get_if<schedule::SplitStep>(&step);
      if (split != nullptr && split->inner == tree.loop.back()) return tree.extents[split->input];
    }
    return tree.extents[tree.loop.back()];
  }

  [[noreturn]] void refuse(const std::vector<Cluster>& clusters, const std::vector<int>& missing) const {
    std::string names;
    for (size_t c = 0; c < clusters.size(); ++c) {
      if (missing[c] > 0)
        names += cat(names.empty() ? "" : ", ", fusion_.values[tree_.items[clusters[c].items[0]].value].name);
    }
    throw UserError(cat("[lower] the loops of ", names,
                        " each need values of another one that are complete only after it; inline less"));
  }

  const Fusion& fusion_;
  const Schedule& schedule_;
  LoopTree tree_;
  std::vector<int> item_of_;             // by value, -1 for an input
  std::vector<std::vector<int>> waits_;  // by item: items whose values it reads
  UnionFind same_loops_{0};
};

}  // namespace

LoopTree make_loop_tree(const Fusion& fusion, const Schedule& schedule) { return Arranger(fusion, schedule).run(); }

int64_t extent_of(const LoopTree& tree, schedule::Parallel parallel) {
  int64_t extent = 1;
  for (const Item& item : tree.items) {
    for (int loop : path(item)) {
      if (tree.loops[loop].parallel == parallel) extent = std::max(extent, tree.loops[loop].extent);
    }
  }
  return extent;
}

std::vector<int> path(const Item& item) {
  std::vector<int> result;
  for (int loop : item.loops) {
    if (loop >= 0) result.push_back(loop);
  }
  return result;
}

bool is_fold(const Item& item) {
  return item.op != nullptr && ir::info(item.op->kind).op_class == ir::OpClass::kReduce;
}

}  // namespace jf::lower
