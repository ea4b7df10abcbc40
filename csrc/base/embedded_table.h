// The table that base/embed.py writes at build time.
#pragma once

#include <string_view>

namespace jf {

struct EmbeddedText {
  std::string_view name;
  std::string_view text;
};

extern const EmbeddedText kEmbeddedTexts[];
extern const int kEmbeddedCount;

}  // namespace jf
