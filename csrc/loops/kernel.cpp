#include "loops/kernel.h"

#include <algorithm>

namespace jf::loops {
namespace {

int next_variable(const Body& body) {
  int next = 0;
  for (const Stmt& stmt : body) {
    std::visit(
        [&](const auto& node) {
          if constexpr (requires { node.variable; }) next = std::max(next, node.variable + 1);
          if constexpr (requires { node.body; }) next = std::max(next, next_variable(node.body));
        },
        stmt.node);
  }
  return next;
}

}  // namespace

bool ends_ahead(const Vector& vector) {
  return std::any_of(vector.limits.begin(), vector.limits.end(),
                     [](const Below& limit) { return !is_zero(limit.index); });
}

int next_variable(const Kernel& kernel) {
  int next = next_variable(kernel.body);
  for (const Ring& ring : kernel.rings) next = std::max(next, ring.variable + 1);
  return next;
}

}  // namespace jf::loops
