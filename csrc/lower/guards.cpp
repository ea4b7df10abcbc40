#include "lower/guards.h"

#include <algorithm>
#include <optional>

#include "graph/index.h"

namespace jf::lower {
namespace {

using namespace loops;

bool depends(const Below& bound, const ThreadVariables& variables) {
  return std::any_of(variables.begin(), variables.end(), [&](int64_t v) { return loops::depends(bound, v); });
}

bool is_same(const Below& a, const Below& b) {
  return a.bound == b.bound && a.variable == b.variable && graph::same(a.index, b.index);
}
const Below* find(const Condition& condition, const Below& bound) {
  const auto found =
      std::find_if(condition.begin(), condition.end(), [&](const Below& b) { return is_same(b, bound); });
  return found == condition.end() ? nullptr : &*found;
}
bool has(const Condition& condition, const Below& bound) { return find(condition, bound) != nullptr; }
Condition without(const Condition& condition, const Condition& taken) {
  Condition rest;
  for (const Below& bound : condition) {
    if (!has(taken, bound)) rest.push_back(bound);
  }
  return rest;
}

// What a condition can be put on. Everything else only makes registers and may run anywhere. An element of an array
// that is set may be read elsewhere: a condition around it must be its own, which it need not have by itself.
bool has_effect(const Stmt& stmt) {
  return std::holds_alternative<For>(stmt.node) || std::holds_alternative<Vector>(stmt.node) ||
         std::holds_alternative<Guard>(stmt.node) || std::holds_alternative<Load>(stmt.node) ||
         std::holds_alternative<ReadIndex>(stmt.node) || std::holds_alternative<Search>(stmt.node) ||
         std::holds_alternative<Store>(stmt.node) || std::holds_alternative<Accumulate>(stmt.node) ||
         std::holds_alternative<BulkLoad>(stmt.node) || std::holds_alternative<TileLoad>(stmt.node) ||
         std::holds_alternative<CommitRing>(stmt.node) || std::holds_alternative<AwaitRing>(stmt.node) ||
         std::holds_alternative<BulkStore>(stmt.node) || std::holds_alternative<TurnTile>(stmt.node) ||
         std::holds_alternative<Scan>(stmt.node) || std::holds_alternative<Set>(stmt.node);
}
bool needs_condition(const Stmt& stmt) {
  const Set* set = std::get_if<Set>(&stmt.node);
  return has_effect(stmt) && (set == nullptr || set->existing);
}

bool is_dynamic(const Below& bound) { return bound.variable >= 0; }

// Whether a greater variable makes a greater index, or one that is no smaller.
bool grows(const IndexPtr& index, int64_t variable) {
  switch (index->kind) {
    case IndexKind::kConst:
    case IndexKind::kVar: return true;
    case IndexKind::kAdd:
    case IndexKind::kMul:
    case IndexKind::kMin: return grows(index->a, variable) && grows(index->b, variable);
    case IndexKind::kDiv: return grows(index->a, variable) && !loops::depends(index->b, variable);
    default: return !loops::depends(index, variable);
  }
}

// What holds wherever such a bound does, whatever the variables are; nothing where no more is known than before.
std::optional<Below> without_variables(Below bound, const ThreadVariables& variables) {
  if (!is_dynamic(bound) || variables.count(bound.variable) > 0) return std::nullopt;
  for (int64_t v : variables) {
    if (!grows(bound.index, v)) return std::nullopt;
    bound.index = replace(bound.index, v, constant(0));
  }
  if (bound.index->kind == IndexKind::kConst) return std::nullopt;
  bound.implied = true;
  return bound;
}

// The bounds that every effect in the body has, as far as all threads agree on them where they meet. What is only
// loaded need not have a variable's bound: it goes where that holds.
Condition common(const std::vector<Guarded>& statements, const ThreadVariables& threads) {
  const bool barrier = std::any_of(statements.begin(), statements.end(), [](const Guarded& s) { return s.barrier; });
  const auto loads = [](const Guarded& s) {
    return std::holds_alternative<Load>(s.stmt.node) || std::holds_alternative<ReadIndex>(s.stmt.node);
  };
  const bool only_loads = std::none_of(statements.begin(), statements.end(),
                                       [&](const Guarded& s) { return has_effect(s.stmt) && !loads(s); });
  Condition result;
  for (const bool dynamic : {false, true}) {
    bool first = true;
    Condition shared;
    for (const Guarded& s : statements) {
      if (!has_effect(s.stmt) || (dynamic && loads(s) && !only_loads)) continue;
      Condition own;
      for (const Below& bound : s.when) {
        if (is_dynamic(bound) != dynamic) continue;
        const bool known = !barrier || !depends(bound, threads);
        if (known) own.push_back(bound);
        if (const auto less = without_variables(bound, threads); !known && less) own.push_back(*less);
      }
      if (first) {
        shared = std::move(own);
      } else {
        Condition both;
        for (Below& bound : shared) {
          const Below* other = find(own, bound);
          if (other == nullptr) continue;
          bound.implied = bound.implied && other->implied;
          both.push_back(std::move(bound));
        }
        shared = std::move(both);
      }
      first = false;
    }
    result.insert(result.end(), shared.begin(), shared.end());
  }
  return result;
}

// Puts each remaining condition on its own statement.
Body apply(std::vector<Guarded> statements, const Condition& taken) {
  Body body;
  for (Guarded& s : statements) {
    Condition rest = needs_condition(s.stmt) ? without(s.when, taken) : Condition{};
    std::erase_if(rest, [](const Below& bound) { return bound.implied; });
    if (rest.empty()) {
      body.push_back(std::move(s.stmt));
    } else if (Load* load = std::get_if<Load>(&s.stmt.node)) {
      load->when = std::move(rest);
      body.push_back(std::move(s.stmt));
    } else if (ReadIndex* read = std::get_if<ReadIndex>(&s.stmt.node)) {
      read->when = std::move(rest);
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

bool same(const Condition& a, const Condition& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_same);
}

bool same(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Range& x, const Range& y) {
    return x.begin == y.begin && x.end == y.end && x.lanes == y.lanes && graph::same(x.index, y.index);
  });
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
  for (const Below& bound : shared) (depends(bound, variable) ? inside : outside).push_back(bound);
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
  for (const Below& bound : shared) (depends(bound, variable) ? inside : outside).push_back(bound);
  for (const Below& bound : inside) {
    if (const auto first = without_variables(bound, {variable}); first) outside.push_back(*first);
  }
  Body body = guarded(std::move(inside), apply(std::move(statements), shared));
  For loop{static_cast<int>(variable), 1, loops::Parallel::kSerial, std::move(body)};
  return {std::move(outside), {std::move(loop)}, barrier};
}

void end_early(For& loop) {
  Guard* guard = loop.body.size() == 1 ? std::get_if<Guard>(&loop.body[0].node) : nullptr;
  if (guard == nullptr || loop.parallel != loops::Parallel::kSerial || loop.reverse) return;
  for (const Below& bound : guard->below) {
    if (is_dynamic(bound) && grows(bound.index, loop.variable)) loop.runs.push_back(bound);
  }
  guard->below = without(guard->below, loop.runs);
  if (guard->below.empty()) loop.body = Body(std::move(guard->body));
}

Body close(std::vector<Guarded> statements, const ThreadVariables& threads) {
  const Condition shared = common(statements, threads);
  return guarded(shared, apply(std::move(statements), shared));
}

}  // namespace jf::lower
