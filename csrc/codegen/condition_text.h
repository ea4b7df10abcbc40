// Conditions as C++ text.
#pragma once

#include <string>

#include "codegen/index_text.h"
#include "loops/kernel.h"

namespace jf::codegen {

// Empty for no condition. `alone`: nothing else is asked beside it.
std::string condition_text(const loops::Condition& below, const Variables& variables, bool alone = true);
// The offset `at` where all of the condition holds, the first element elsewhere.
std::string or_first_text(const loops::Condition& below, const std::string& at, const Variables& variables);

// The least number that a limit of lanes leaves.
std::string limits_text(const loops::Condition& limits, const Variables& variables);

// Whether a vector of lanes that move may begin before its row, and end behind it, as two arguments that are known once
// loops are unrolled: only those have the code for some lanes.
std::string ends_text(const loops::Vector& vector, int width, const Variables& variables);

}  // namespace jf::codegen
