// Programs that are compiled while their calls are still being lowered, several at the same time: a module's calls are
// all lowered before the first is instantiated. What somebody only lowers, to read or export it, is not compiled.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace jf::host {

class Executable;
using MakeExecutable = std::function<std::shared_ptr<Executable>()>;

// Which module a program is lowered for, by any number, and whether the module is certain to be compiled.
struct Ahead {
  int64_t module = 0;
  bool at_once = true;
};

// Calls `make` in the background: at once, or when the first program of the same module is taken. Some hundred are
// kept; the oldest leave first, and are made again when wanted.
void make_ahead(std::string key, MakeExecutable make, const Ahead& ahead);
// What was begun for this key, which is kept no longer; null for none. Throws what `make` threw.
std::shared_ptr<Executable> take_ahead(const std::string& key);

}  // namespace jf::host
