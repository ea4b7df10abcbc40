#include "base/embedded.h"

#include <algorithm>

#include "base/embedded_table.h"
#include "base/error.h"

namespace jf {
namespace {

const EmbeddedText* find(std::string_view name) {
  const EmbeddedText* end = kEmbeddedTexts + kEmbeddedCount;
  const EmbeddedText* found = std::find_if(kEmbeddedTexts, end, [&](const EmbeddedText& e) { return e.name == name; });
  return found == end ? nullptr : found;
}

void collect(std::string_view text, std::vector<std::pair<std::string, std::string>>& found) {
  constexpr std::string_view kInclude = "#include \"";
  for (size_t at = text.find(kInclude); at != std::string_view::npos; at = text.find(kInclude, at)) {
    at += kInclude.size();
    const std::string_view name = text.substr(at, text.find('"', at) - at);
    if (std::any_of(found.begin(), found.end(), [&](const auto& f) { return f.first == name; })) continue;
    const std::string_view included = embedded_text(name);
    found.emplace_back(name, included);
    collect(included, found);
  }
}

}  // namespace

std::string_view embedded_text(std::string_view name) {
  const EmbeddedText* found = find(name);
  JF_CHECK(found, "no embedded text '", name, "'");
  return found->text;
}

std::vector<std::pair<std::string, std::string>> embedded_includes(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> found;
  collect(text, found);
  return found;
}

}  // namespace jf
