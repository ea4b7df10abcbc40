// Whether a kernel that needs a value computes it again rather than reads it from memory.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/fusion.h"
#include "plan/clusters.h"

namespace jf::plan {

// Axes of extent 1 do not change what iterates.
std::vector<int64_t> iteration_shape(const ir::Value& value);
// Whether an op makes a dense value of a nested one.
bool leaves_nested(const ir::Fusion& fusion, const ir::Op& op);

class Recompute {
 public:
  // Holds on to both.
  Recompute(const ir::Fusion& fusion, const Clusters& clusters);
  // Whether kernels that use the value had better compute it than read it.
  bool better_again(ir::ValueId value) const;
  // Whether it is so little work that a store is saved even where no reduction hides it.
  bool is_trivial(ir::ValueId value) const;
  // Whether kernels that compute the value read no more than the value itself, so that a store of it is saved. Not what
  // is equal to others or not, above a fold or below: kernels may round it differently.
  bool saves_store(ir::ValueId value) const;

 private:
  // What it takes to compute a value again from memory. A value read from memory takes nothing but itself.
  struct Again {
    int cost = 0;
    bool moves = false;              // whether elements are read in another order than memory's
    std::vector<ir::ValueId> reads;  // a few at most
  };
  Again again(const ir::Op& op) const;
  // Whether a cluster's value is small against the cluster's space, so that storing it costs nothing.
  bool is_small(ir::ValueId value) const;
  int64_t large_reads(ir::ValueId value) const;
  // Whether it is computed in place from one value of no more bytes.
  bool is_of_one(ir::ValueId value) const;

  const ir::Fusion& fusion_;
  const Clusters& clusters_;
  std::vector<bool> is_input_, is_spread_, is_compared_;
  std::vector<Again> again_;
};

}  // namespace jf::plan
