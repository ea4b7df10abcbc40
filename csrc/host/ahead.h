// Programs that are compiled while their calls are still being lowered, several at the same time: a module's calls are
// all lowered before the first is instantiated.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace jf::host {

class Executable;
using MakeExecutable = std::function<std::shared_ptr<Executable>()>;

// Calls `make` in the background. A few results are kept; the oldest leave first, and are made again when wanted.
void make_ahead(std::string key, MakeExecutable make);
// What was begun for this key, which is kept no longer; null for none. Throws what `make` threw.
std::shared_ptr<Executable> take_ahead(const std::string& key);

}  // namespace jf::host
