// Disjoint sets of the numbers 0 .. count - 1.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

namespace jf {

class UnionFind {
 public:
  explicit UnionFind(int count = 0) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }
  int find(int x) {
    while (parent_[x] != x) x = parent_[x] = parent_[parent_[x]];
    return x;
  }
  // The smaller number represents the set, so that sets do not depend on the order of calls.
  void unite(int a, int b) {
    a = find(a), b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<int> parent_;
};

}  // namespace jf
