#include "lower/guards.h"

#include <algorithm>

#include "graph/index.h"

namespace jf::lower {
namespace {

using namespace loops;
using Bound = Condition::value_type;

bool depends(const IndexPtr& index, const ThreadVariables& variables) {
  return std::any_of(variables.begin(), variables.end(), [&](int64_t v) { return lower::depends(index, v); });
}

bool contains(const Condition& condition, const Bound& bound) {
  return std::any_of(condition.begin(), condition.end(), [&](const Bound& other) {
    return other.second == bound.second && graph::same(other.first, bound.first);
  });
}
Condition without(const Condition& condition, const Condition& taken) {
  Condition rest;
  for (const Bound& bound : condition) {
    if (!contains(taken, bound)) rest.push_back(bound);
  }
  return rest;
}

// What a condition can be put on. Everything else only makes registers and may run anywhere.
bool has_effect(const Stmt& stmt) {
  return std::holds_alternative<For>(stmt.node) || std::holds_alternative<Vector>(stmt.node) ||
         std::holds_alternative<Guard>(stmt.node) || std::holds_alternative<Load>(stmt.node) ||
         std::holds_alternative<Search>(stmt.node) || std::holds_alternative<Store>(stmt.node) ||
         std::holds_alternative<Accumulate>(stmt.node) || std::holds_alternative<BulkLoad>(stmt.node) ||
         std::holds_alternative<TileLoad>(stmt.node) || std::holds_alternative<CommitRing>(stmt.node) ||
         std::holds_alternative<AwaitRing>(stmt.node) || std::holds_alternative<BulkStore>(stmt.node) ||
         std::holds_alternative<Scan>(stmt.node) ||
         (std::holds_alternative<Set>(stmt.node) && std::get<Set>(stmt.node).existing);
}

// The bounds that every effect in the body has, as far as all threads agree on them where they meet.
Condition common(const std::vector<Guarded>& statements, const ThreadVariables& threads) {
  const bool barrier = std::any_of(statements.begin(), statements.end(), [](const Guarded& s) { return s.barrier; });
  bool first = true;
  Condition result;
  for (const Guarded& s : statements) {
    if (!has_effect(s.stmt)) continue;
    if (first) {
      for (const Bound& bound : s.when) {
        if (!barrier || !depends(bound.first, threads)) result.push_back(bound);
      }
    } else {
      Condition both;
      for (const Bound& bound : result) {
        if (contains(s.when, bound)) both.push_back(bound);
      }
      result = std::move(both);
    }
    first = false;
  }
  return result;
}

// Puts each remaining condition on its own statement.
Body apply(std::vector<Guarded> statements, const Condition& taken) {
  Body body;
  for (Guarded& s : statements) {
    Condition rest = has_effect(s.stmt) ? without(s.when, taken) : Condition{};
    if (rest.empty()) {
      body.push_back(std::move(s.stmt));
    } else if (Load* load = std::get_if<Load>(&s.stmt.node)) {
      load->when = std::move(rest);
      body.push_back(std::move(s.stmt));
    } else if (Search* search = std::get_if<Search>(&s.stmt.node)) {
      search->when = std::move(rest);
      body.push_back(std::move(s.stmt));
    } else if (Scan* scan = std::get_if<Scan>(&s.stmt.node)) {
      scan->when = std::move(rest);
      body.push_back(std::move(s.stmt));
    } else {
      Guard guard{std::move(rest), {}};
      guard.body.push_back(std::move(s.stmt));
      body.push_back({std::move(guard)});
    }
  }
  return body;
}

Body guarded(Condition condition, Body body) {
  if (condition.empty()) return body;
  Body result;
  result.push_back({Guard{std::move(condition), std::move(body)}});
  return result;
}

bool meets(const std::vector<Guarded>& statements) {
  return std::any_of(statements.begin(), statements.end(), [](const Guarded& s) { return s.barrier; });
}

}  // namespace

bool depends(const IndexPtr& index, int64_t variable) {
  if (index->kind == IndexKind::kConst) return false;
  if (index->kind == IndexKind::kVar) return index->value == variable;
  return depends(index->a, variable) || depends(index->b, variable);
}

std::optional<int64_t> step_of(const IndexPtr& index, int64_t variable) {
  if (!depends(index, variable)) return 0;
  if (index->kind == loops::IndexKind::kVar) return 1;
  if (index->kind == loops::IndexKind::kAdd) {
    const std::optional<int64_t> a = step_of(index->a, variable), b = step_of(index->b, variable);
    return a && b ? std::optional(*a + *b) : std::nullopt;
  }
  if (index->kind == loops::IndexKind::kMul && index->b->kind == loops::IndexKind::kConst) {
    const std::optional<int64_t> a = step_of(index->a, variable);
    return a ? std::optional(*a * index->b->value) : std::nullopt;
  }
  return std::nullopt;
}

std::vector<Guarded> together(std::vector<Guarded> statements, int64_t variable, const ThreadVariables& threads) {
  const bool barrier = meets(statements);
  const Condition shared = common(statements, threads);
  Condition inside, outside;
  for (const Bound& bound : shared) (depends(bound.first, variable) ? inside : outside).push_back(bound);
  if (inside.empty()) return statements;
  Guard guard{std::move(inside), apply(std::move(statements), shared)};
  std::vector<Guarded> result;
  result.push_back({std::move(outside), {std::move(guard)}, barrier});
  return result;
}

Guarded enclose(std::vector<Guarded> statements, int64_t variable, const ThreadVariables& threads) {
  const bool barrier = meets(statements);
  const Condition shared = common(statements, threads);
  Condition inside, outside;
  for (const Bound& bound : shared) (depends(bound.first, variable) ? inside : outside).push_back(bound);
  Body body = guarded(std::move(inside), apply(std::move(statements), shared));
  For loop{static_cast<int>(variable), 1, Parallel::kSerial, std::move(body)};
  return {std::move(outside), {std::move(loop)}, barrier};
}

Body close(std::vector<Guarded> statements, const ThreadVariables& threads) {
  const Condition shared = common(statements, threads);
  return guarded(shared, apply(std::move(statements), shared));
}

}  // namespace jf::lower
