// Values that many elements share and that are dear: a kernel computes and stores each once, and others read it.
//
// Angles of rotary embeddings: sines and cosines of [tokens, frequencies], read by [tokens, heads, frequencies].
#pragma once

#include <vector>

#include "base/target.h"
#include "ir/fusion.h"
#include "plan/clusters.h"

namespace jf::plan {

// By value: whether it is such a table. Only free values are, in fusions of dense values.
std::vector<bool> find_tables(const ir::Fusion& fusion, const Clusters& clusters, const Target& target);

}  // namespace jf::plan
