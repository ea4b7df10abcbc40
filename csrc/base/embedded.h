// Texts compiled into the library: preludes and kernel headers that the generated sources include by name.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jf {

// `name` is the path below csrc/, for example "codegen/cpu_prelude.h". Throws InternalError for a name that is not
// there.
std::string_view embedded_text(std::string_view name);
// The embedded texts that `text` includes with #include "...", and what those include, each once: (name, text).
std::vector<std::pair<std::string, std::string>> embedded_includes(std::string_view text);

}  // namespace jf
