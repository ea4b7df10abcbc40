// A text to compile, and the key under which its binary is kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/target.h"

namespace jf::runtime {

enum class Language : uint8_t { kHostCxx, kCuda };

struct Source {
  Language language = Language::kHostCxx;
  std::string text;
  // The extern "C" functions that callers look up in the binary.
  std::vector<std::string> entries;
  // Name -> text. Both `#include "name"` and `#include <name>` find them, from the text and from each other.
  std::vector<std::pair<std::string, std::string>> headers;
  // Added to the flags that every source of the language gets.
  std::vector<std::string> flags;
};

// Content hash of all that can change the binary: text, headers, entries, flags, compiler version, target.
std::string key(const Source& source, const std::vector<std::string>& flags, std::string_view compiler_version,
                const Target& target);

// File name endings: "cpp" and "cu"; "so" and "cubin".
std::string_view source_suffix(Language language);
std::string_view binary_suffix(Language language);

}  // namespace jf::runtime
