// Source to binary, each text once: a table of this process, then the disk cache, then the compiler.
#pragma once

#include <memory>
#include <string>

#include "base/target.h"
#include "runtime/source.h"

namespace jf::runtime {

struct Binary {
  Language language = Language::kHostCxx;
  std::string key;
  std::string bytes;
  std::string path;  // a file that begins with `bytes`; empty when the disk cache is off
};

// Any thread. Callers with equal sources wait for one compile; a failure is thrown to all who wait, and the next call
// tries again. Throws UserError when there is no compiler or when it fails.
std::shared_ptr<const Binary> compile(const Source& source, const Target& target);

}  // namespace jf::runtime
