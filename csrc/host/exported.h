// Programs that another machine may have written, by jax.export or into a cache: planned again for this one.
#pragma once

#include <string_view>

#include "base/target.h"
#include "host/program.h"

namespace jf::host {

// The program of a text that was written for one target, for another. Throws UserError that names both where that one
// lacks a kernel: 8-bit floats, four-bit weights and results that are quantized have theirs on some GPUs alone.
Program build_exported(std::string_view program, const Target& written_for, const Target& here);

// Throws UserError where a call came to another platform than its text was written for.
void require_platform(const Target& written_for, Platform here);

}  // namespace jf::host
