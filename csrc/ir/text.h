// The text form: attribute of the custom call, dump, golden file and bug report. parse(print(f)) == f.
//
//   fusion bias_gelu(x: bf16[128,512], b: bf16[512]) -> (t4) {
//     t0: bf16[b128,512] = broadcast(b) {dims=[1]}
//     t1: bf16[128,512] = add(x, t0)  # add
//     c0: bf16[] = constant() {value=0.5}
//     ...
//   }
#pragma once

#include <string>
#include <string_view>

#include "ir/fusion.h"

namespace jf::ir {

std::string print(const Fusion& fusion);
// One value's type: "bf16[b128,512]", "bf16[3,ragged 128 of sizes by 0,512]"; without the fusion, extents go by number.
std::string print_type(const Value& value);
std::string print_type(const Fusion& fusion, const Value& value);
// " {dims=[0], parts=2}"; empty where there is none.
std::string print_attribute(const Attribute& attribute);
// "0.5", "nan", "-inf", "3": the shortest text that parses back to the same bits.
std::string print_constant(const Constant& constant);
// Throws UserError with line and what was expected. The result is verified.
Fusion parse(std::string_view text);
// A label as the text form can hold it: one printable line without a second comment mark.
std::string clean_label(std::string_view label);
// A name made of the letters, digits and underscores of `text`, never empty, never starting with a digit.
std::string identifier(std::string_view text);

}  // namespace jf::ir
