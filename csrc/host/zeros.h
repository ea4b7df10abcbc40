// What a kernel stores only in part is zero elsewhere: a kernel before it fills those outputs.
#pragma once

#include "base/target.h"
#include "host/program.h"
#include "ir/fusion.h"

namespace jf::host {

// Adds a step for an output of a segment that is combined.
void add_zeros(const ir::Fusion& segment, ir::ValueId combined, const BufferRef& output, const Target& target,
               Program& program);

}  // namespace jf::host
