// Prints a loop program as C++ text, the same walk for every language.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "codegen/dialect.h"
#include "loops/kernel.h"

namespace jf::codegen {

// The definition of the kernel's function. Equal kernels give equal bytes. It takes the buffers in their own order, or
// in the order of `parameters`.
std::string print_kernel(const loops::Kernel& kernel, const Dialect& dialect, const std::vector<int>& parameters = {});

// Statements of functions of which each knows what those before it have computed.
struct Bodies {
  loops::Body constants;  // of each
  std::vector<loops::Body> bodies;
  std::vector<std::string> known_as;  // the prefix, for later ones, of what each has computed
  std::vector<int> variables;         // that are given
  std::vector<int> arrays;            // those that are declared already
  std::vector<std::string> buffers;   // their names, by number
};
struct BodyTexts {
  struct One {
    std::string text;
    std::vector<std::pair<std::string, std::string>> computed;  // types and names
  };
  std::string types, index_type;
  std::vector<One> bodies;
  std::vector<std::string> variables;  // their names
};
BodyTexts print_bodies(const loops::Kernel& kernel, const Bodies& bodies, const Dialect& dialect);

}  // namespace jf::codegen
