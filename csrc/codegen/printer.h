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

// Statements of two functions, of a row and of a place in it, where the second knows what the first has computed.
struct TwoBodies {
  loops::Body constants;  // of both
  loops::Body of_row, of_place;
  int row, column;                   // the variables that are given
  std::vector<int> arrays;           // those that are declared already
  std::vector<std::string> buffers;  // their names, by number
};
struct TwoTexts {
  std::string types, of_row, of_place;
  std::vector<std::pair<std::string, std::string>> handed;  // type and name of what the row knows: in the place own.name
  std::string row, column, index_type;
};
TwoTexts print_bodies(const loops::Kernel& kernel, const TwoBodies& bodies, const Dialect& dialect);

}  // namespace jf::codegen
