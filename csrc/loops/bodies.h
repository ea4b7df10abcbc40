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

// What each iteration does, under a condition that it may have as a whole.
inline Body& inside(For& loop) {
  Guard* guard = loop.body.size() == 1 ? std::get_if<Guard>(&loop.body[0].node) : nullptr;
  return guard != nullptr ? guard->body : loop.body;
}

}  // namespace jf::loops
