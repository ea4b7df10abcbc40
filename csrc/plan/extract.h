// The fusion of one segment.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "ir/fusion.h"
#include "plan/plan.h"
#include "plan/segment.h"

namespace jf::plan {

// The ops that compute values from those that are read, in their order.
std::vector<size_t> ops_between(const ir::Fusion& fusion, const std::set<ir::ValueId>& read,
                                const std::vector<ir::ValueId>& outputs);
// The ops of a pointwise draft or a reduction, reading every other value as an input. A value that the segment needs at
// two places of its iteration domain (x + transpose(x)) becomes two values, so that each has one place.
Segment extract_fused(const ir::Fusion& fusion, const Draft& draft, const std::string& name);
// The ops of a draft of nested values, each once.
Segment extract_nested(const ir::Fusion& fusion, const Draft& draft, const std::string& name);
// The one op of a grouped draft.
Segment extract_grouped(const ir::Fusion& fusion, const Draft& draft, const std::string& name);

}  // namespace jf::plan
