// Which ops belong to the kernel of a reduction: the reductions of one space along the same axes, and what is computed
// from them along its axes, back to the whole space included. What leads to them stays free: the kernels that need it
// compute it. A scan counts as a reduction of its axis that keeps it.
//
// One pass in the order of the ops. An op joins a cluster unless one of its operands comes from that cluster through
// memory, so that clusters never wait for each other.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/target.h"
#include "ir/fusion.h"

namespace jf::plan {

// For each axis of a value, the axis of the space that has its index; -1 where the extent is 1.
using Place = std::vector<int>;

// The axes over which a kernel's loops run, those of extent 1 left out, and which of them its reductions fold.
struct Space {
  std::vector<int64_t> extents;
  std::vector<bool> folded;
  bool operator==(const Space&) const = default;
};

struct Cluster {
  Space space;
  int split_axis = -1;  // the axis of the space that reductions in parts split; -1 without such
  int64_t parts = 0;
  bool in_turn = false;  // see ir::Reduce
  int direction = 0;     // of its scans: 1, or -1 for reversed ones; 0 without any
  bool runs = false;     // whether reductions fold the last axis alone: each of so many elements of a row
};

struct Clusters {
  std::vector<Cluster> all;
  std::vector<int> of;            // by value: the cluster that computes it; -1 for free values
  std::vector<Place> places;      // by value of a cluster
  std::map<size_t, Place> folds;  // by number of a reduction: the axes of the space that its dims are
  // By free value: a cluster of its iteration domain that reads what most of the value comes from, and that it does not
  // come from; -1 for none. Such clusters can wait for results of the fusion.
  std::vector<int> beside;
};

Clusters find_clusters(const ir::Fusion& fusion, const Target& target);

}  // namespace jf::plan
