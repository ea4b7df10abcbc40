// What each kernel of a program reads, writes and computes: facts for people, beside the steps that run.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/parameters.h"
#include "base/target.h"
#include "ir/fusion.h"

namespace jf::host {

// An array that a kernel reads or writes.
struct Flow {
  std::string value;  // its name in the whole fusion; a part of a concatenation goes by the name of the whole
  std::string dtype;
  std::vector<int64_t> shape;  // of what is read or written
  int64_t bytes = 0;           // at most once each: of slices only what they take
};
struct KernelFacts {
  std::string name;
  std::string strategy;    // pointwise, transpose, reduction, grouped, empty, written, "by hand"
  std::string reason;      // why it is a kernel of its own
  std::string parameters;  // of the strategy, as its printer writes them
  Parameters fields;       // the same by name, where somebody may choose others (host/tuning.h)
  std::vector<Flow> reads, writes;
  // Every op counts 1 for each element that it computes, an element that a reduction or a scan takes 1, a
  // multiplication with its addition 2; conversions, and what only moves data, 0. A grouped product counts the capacity
  // of its rows.
  int64_t operations = 0;
};

// `segment` computes `outputs` of `whole` from its `inputs`, each in the order of the segment's own.
KernelFacts kernel_facts(const ir::Fusion& segment, const ir::Fusion& whole, const std::vector<ir::ValueId>& inputs,
                         const std::vector<ir::ValueId>& outputs);
// The kernel of a product that ends with what others would do. `reads`: what it reads for them, by name; neither the
// product nor, on GPUs, which group a row is of, which the product's tiles know. `keeps`: it stores the product, too.
KernelFacts joined(const KernelFacts& first, const std::vector<KernelFacts>& tails, const std::set<std::string>& reads,
                   bool keeps);
std::vector<std::string> names(const ir::Fusion& fusion, const std::vector<ir::ValueId>& ids);
// Of a whole fusion as one kernel.
KernelFacts kernel_facts(const ir::Fusion& fusion);

// A kernel as it runs: its facts, how it is launched, and the name that profilers show.
struct LaunchFacts {
  KernelFacts kernel;
  std::string launch;  // "grid 16 x 1, block 64 x 1", "16 tasks"; empty where nothing is generated
  std::string entry;
  std::vector<std::pair<int64_t, std::string>> results;  // which of the program's it writes, by what it calls them
};
std::vector<LaunchFacts> facts(const std::string& program, const std::string& target);

}  // namespace jf::host
