// What a kernel stores only in part is zero elsewhere: a kernel before it fills those outputs.
#pragma once

#include <vector>

#include "base/target.h"
#include "host/program.h"
#include "ir/fusion.h"

namespace jf::host {

// Adds a step for each combined output of a segment; `outputs` are their places.
void add_zeros(const ir::Fusion& segment, const std::vector<BufferRef>& outputs, const Target& target,
               Program& program);

}  // namespace jf::host
