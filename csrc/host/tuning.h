// Parameters that measurements chose for the kernels of a program instead of the planner. They change the speed, and
// the last bits of sums, whose order they may change.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/parameters.h"

namespace jf::host {

// By the name of the kernel's segment. Text behind the fusion's:
//
//   tuned {
//     f_0: threads=512 unroll=2
//   }
struct Tuning {
  std::map<std::string, Parameters> kernels;

  const Parameters& of(const std::string& kernel) const;
};

Tuning parse_tuning(std::string_view text);

// What is worth measuring beside what a kernel runs with: by kernel, its parameters now and those of its neighbours,
// each as the text of all that differs from the planner's choice or may. Some of them no kernel can have: building with
// them throws UserError.
struct Alternatives {
  std::string kernel, now;
  std::vector<std::string> others;
};
std::vector<Alternatives> alternatives(const std::string& program, const std::string& target);

}  // namespace jf::host
