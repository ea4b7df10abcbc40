#include "runtime/source.h"

#include "base/error.h"
#include "runtime/hash.h"

namespace jf::runtime {
namespace {

// Changes when the layout of cached files or the way of calling a binary does.
constexpr std::string_view kFormat = "jax_fuser-binary-1";

}  // namespace

std::string key(const Source& source, const std::vector<std::string>& flags, std::string_view compiler_version,
                const Target& target) {
  std::string all;
  // Each field is preceded by its length, so that no two lists of fields give one string.
  auto add = [&all](std::string_view field) { all += cat(field.size(), ':', field); };
  auto add_all = [&](const std::vector<std::string>& fields) {
    add(std::to_string(fields.size()));
    for (const std::string& field : fields) add(field);
  };
  add(kFormat);
  add(source_suffix(source.language));
  add(compiler_version);
  add(print(target));
  add_all(flags);
  add_all(source.flags);
  add_all(source.entries);
  for (const auto& [name, text] : source.headers) {
    add(name);
    add(text);
  }
  add(source.text);
  return sha256(all);
}

std::string_view source_suffix(Language language) { return language == Language::kHostCxx ? "cpp" : "cu"; }
std::string_view binary_suffix(Language language) { return language == Language::kHostCxx ? "so" : "cubin"; }

}  // namespace jf::runtime
