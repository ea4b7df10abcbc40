// The indexer seen from outside: which element each iteration of a value's loops computes. For people and tests; a
// kernel computes the same arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace jf::graph {

// One entry for each iteration of the loops, the outermost counting slowest: the sum of weights[i] * (index of root
// axis i), or nothing where a bound keeps the iteration out. Throws UserError, naming `value`, for millions of them.
std::vector<std::optional<int64_t>> positions(const schedule::Domain& domain, std::span<const int64_t> weights,
                                              const std::string& value);

}  // namespace jf::graph
