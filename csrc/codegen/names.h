// Names and literals that are safe to print.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "ir/fusion.h"

namespace jf::codegen {

// C++ names for buffers and arrays: their own where that is a plain word and free, otherwise one made from it.
std::vector<std::string> safe_names(const std::vector<std::string>& names);
// One line of printable text that cannot end or continue a comment.
std::string safe_comment(std::string_view text);
// A literal that reads back as the same value of the dtype.
std::string literal(const ir::Constant& constant, DType dtype);

}  // namespace jf::codegen
