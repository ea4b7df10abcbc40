// Statements with statements in them.
#pragma once

#include <variant>

#include "loops/kernel.h"

namespace jf::loops {

// Calls f with the body of a statement, if it has one.
template <class Statement, class F>
void visit_body(Statement& stmt, const F& f) {
  std::visit(
      [&](auto& node) {
        if constexpr (requires { node.body; }) f(node.body);
      },
      stmt.node);
}

}  // namespace jf::loops
