// What follows a grouped product in several segments, as one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "grouped/problem.h"
#include "plan/plan.h"

namespace jf::host {

// The segments that read a product, and what of the same rows and columns is computed from what they read, as one
// segment that has their results, of a sum over the columns what is added up.
struct JoinedTails {
  plan::Segment segment = {};
  std::vector<size_t> parts = {};  // ascending
  std::optional<ir::ValueId> sum = {};
};

// The segments that read the value, if it is an array of its own.
std::vector<size_t> readers(const plan::Plan& plan, ir::ValueId value);

// Why those that read the product of the problem cannot be joined; else they are.
std::string join(const plan::Plan& plan, const std::vector<size_t>& reading, const grouped::Problem& problem,
                 JoinedTails& joined);

}  // namespace jf::host
