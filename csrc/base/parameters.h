// The numbers and words that a kernel is decided by, by their names: "keep=rows threads=256".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace jf {

using Parameter = std::variant<bool, int64_t, std::string, std::vector<int64_t>>;
using Parameters = std::map<std::string, Parameter>;

// In the order of their names. parse_parameters(print(p)) == p.
std::string print(const Parameter& value);
std::string print(const Parameters& parameters);
// Throws UserError for text that is no list of name=value.
Parameters parse_parameters(std::string_view text);

}  // namespace jf
