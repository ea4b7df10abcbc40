// The statements of a kernel: loads, computation, folds, stores, in the loops of the tree.
#pragma once

#include "base/target.h"
#include "ir/fusion.h"
#include "loops/kernel.h"
#include "lower/loop_tree.h"
#include "schedule/schedule.h"

namespace jf::lower {

// Fills in arrays, registers and body of a kernel whose buffers are the fusion's inputs, then its outputs. False where
// an access or a bound does not follow the lanes evenly.
bool write(const ir::Fusion& fusion, const schedule::Schedule& schedule, const LoopTree& tree, Platform platform,
           loops::Kernel& kernel);

}  // namespace jf::lower
