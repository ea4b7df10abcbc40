// Kernels written by hand that a program asks for by a line behind its fusion, which says what they compute:
// "kernel quantize columns=1 transpose=1", "kernel quantize_groups", "kernel spread_rows",
// "kernel place_rows", "kernel add_rows".
#pragma once

#include <string_view>
#include <variant>

#include "base/target.h"
#include "grouped/cuda/move_rows.h"
#include "grouped/cuda/quantize.h"
#include "grouped/cuda/quantize_groups.h"
#include "host/program.h"
#include "ir/fusion.h"

namespace jf::host {

using Written = std::variant<grouped::Quantization, grouped::GroupQuantization, grouped::RowMove>;

// `line`: what stands behind "kernel ". Throws UserError where the fusion is not what the kernel computes.
Written parse_written(const ir::Fusion& fusion, std::string_view line);

// Its step, and its parameters for people. Throws UserError for a target without the kernel.
WrittenStep written_step(const ir::Fusion& fusion, const Written& written, const Target& target,
                         std::vector<BufferRef> buffers, std::string& parameters);

}  // namespace jf::host
