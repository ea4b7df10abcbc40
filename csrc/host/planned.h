// Programs that were planned when their call was traced and wait to be instantiated, so that none is planned twice.
#pragma once

#include <optional>
#include <string>

#include "host/program.h"

namespace jf::host {

// A few are kept; the oldest leave first, and are planned again when they are wanted.
void keep_planned(std::string key, Program program);
// The program of this key, which is kept no longer.
std::optional<Program> take_planned(const std::string& key);

}  // namespace jf::host
