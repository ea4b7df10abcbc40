// Transposes that undo each other are left out: what is computed between them has the order of axes that memory has.
//
// A vmap over another axis than the first one turns an array, computes with its rows, and turns what results. Written
// over the array as it lies, rows are columns and nothing is turned.
#pragma once

#include "ir/fusion.h"

namespace jf::plan {

// The same computation with transposes as late as possible, if those are of fewer elements in all; else the fusion.
ir::Fusion with_cancelled_transposes(const ir::Fusion& fusion);

}  // namespace jf::plan
