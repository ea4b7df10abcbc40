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

// Calls f with every statement of a body and of the bodies in it.
template <class Statements, class F>
void for_each(Statements& body, const F& f) {
  for (auto& stmt : body) {
    std::visit(
        [&](auto& node) {
          f(node);
          if constexpr (requires { node.body; }) for_each(node.body, f);
        },
        stmt.node);
  }
}

// Calls f with every register that a statement reads.
template <class Statement, class F>
void for_operands(Statement& stmt, const F& f) {
  std::visit(
      [&](auto& node) {
        if constexpr (requires { node.steps; }) {
          for (auto& step : node.steps) f(step.index);
        }
        if constexpr (requires { node.number; }) f(node.number);
        if constexpr (requires { node.operands; }) {
          for (auto& id : node.operands) f(id);
        }
        if constexpr (requires { node.value; }) f(node.value);
        if constexpr (requires { node.values; }) {
          for (auto& id : node.values) f(id);
        }
        if constexpr (requires { node.factor; }) {
          if (node.factor) f(*node.factor);
        }
        if constexpr (requires { node.which; }) f(node.which);
      },
      stmt.node);
}

// Whether all lanes read what the offset says.
inline bool is_plain(const Load& load) {
  return load.when.empty() && load.within.empty() && load.steps.empty() && load.or_first.empty() && !load.rows &&
         !load.cycle;
}

// What each iteration does, under a condition that it may have as a whole.
inline Body& inside(For& loop) {
  Guard* guard = loop.body.size() == 1 ? std::get_if<Guard>(&loop.body[0].node) : nullptr;
  return guard != nullptr ? guard->body : loop.body;
}

}  // namespace jf::loops
