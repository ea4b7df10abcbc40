// A grouped product of rows, with what follows it, whose result becomes 8-bit floats with scales in the same kernel:
// for a fusion [m, n] of it before a line that names the format. What is in no group must be zero in its result.
//
// The call then has two results: f8e4m3fn [m, n], and f32 [m, n / 128], the scales.
#pragma once

#include <string_view>

#include "base/target.h"
#include "host/program.h"
#include "ir/fusion.h"

namespace jf::host {

constexpr std::string_view kQuantizedLine = "\nquantized fp8_block\n";

// Throws UserError, which says why, for a fusion or a target without such a kernel.
Program quantized_product(const ir::Fusion& fusion, const Target& target);

}  // namespace jf::host
