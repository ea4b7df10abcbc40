// A grouped product of rows, with what follows it, whose result becomes elements of few bits with scales in the same
// kernel: for a fusion [m, n] of it before a line that names the format, "quantized nvfp4". What is in no group must be
// zero in its result.
//
// The call then has two results, which grouped/output_format.h describes: elements [m, n], those of four bits as bytes
// [m, n / 2], and scales [m, n / columns of one].
#pragma once

#include <string_view>

#include "base/target.h"
#include "grouped/output_format.h"
#include "host/program.h"
#include "ir/fusion.h"

namespace jf::host {

constexpr std::string_view kQuantizedLine = "\nquantized ";

// The format of a line without the break before it; UserError for another one.
grouped::OutputFormat parse_quantized(std::string_view line);

// Throws UserError, which says why, for a fusion or a target without such a kernel.
Program quantized_product(const ir::Fusion& fusion, grouped::OutputFormat format, const Target& target);

}  // namespace jf::host
