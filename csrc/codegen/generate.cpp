#include "codegen/generate.h"

#include <algorithm>

#include "base/embedded.h"
#include "base/error.h"
#include "codegen/dialect.h"
#include "codegen/printer.h"

namespace jf::codegen {
namespace {

using namespace loops;

bool is_identifier(std::string_view name) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

// Whether some op takes floats alone: those are in the dialect's second header.
bool needs_math(const Body& body) {
  return std::any_of(body.begin(), body.end(), [](const Stmt& stmt) {
    return std::visit(
        [](const auto& node) {
          using Node = std::decay_t<decltype(node)>;
          if constexpr (std::is_same_v<Node, Compute>) {
            return ir::info(node.op).operands == ir::OperandTypes::kFloating;
          } else if constexpr (std::is_same_v<Node, For> || std::is_same_v<Node, Vector> ||
                               std::is_same_v<Node, Guard>) {
            return needs_math(node.body);
          } else {
            return false;
          }
        },
        stmt.node);
  });
}

}  // namespace

runtime::Source generate(const std::vector<Kernel>& kernels, const Target& target) {
  const Dialect& language = dialect(target.platform);
  runtime::Source source;
  source.language = language.language;
  const bool math = std::any_of(kernels.begin(), kernels.end(), [](const Kernel& k) { return needs_math(k.body); });
  source.text = cat(language.settings(kernels, target), "#include \"", language.prelude, "\"\n");
  if (math) source.text += cat("#include \"", language.math, "\"\n");
  for (const Kernel& kernel : kernels) {
    JF_CHECK(is_identifier(kernel.name), "kernel name '", kernel.name, "' is no identifier");
    source.text += "\n" + print_kernel(kernel, language);
    source.entries.push_back(kernel.name);
  }
  source.headers = embedded_includes(source.text);
  return source;
}

}  // namespace jf::codegen
