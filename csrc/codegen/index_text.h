// Index arithmetic as C++ text, and what can be said about its value.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "loops/kernel.h"

namespace jf::codegen {

// What is known of the variables in scope, by their id.
struct Variable {
  std::string name;
  int64_t multiple;                            // of which its value is a multiple
  std::optional<int64_t> last = std::nullopt;  // its largest value, where that is known
  bool unrolled = false;
};
using Variables = std::map<int64_t, Variable>;

// In the index type of the kernel.
std::string index_text(const loops::IndexPtr& index, const Variables& variables);
// An element offset: 64-bit arithmetic but for the operands of divisions, which fit the index type.
std::string offset_text(const loops::IndexPtr& index, const Variables& variables);
// A number that divides every value of the index; 0 when the value is always 0.
int64_t multiple_of(const loops::IndexPtr& index, const Variables& variables);
// Nothing the index is ever above; nothing where no number is known.
std::optional<int64_t> largest(const loops::IndexPtr& index, const Variables& variables);

}  // namespace jf::codegen
