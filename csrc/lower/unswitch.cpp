#include "lower/unswitch.h"

#include <algorithm>
#include <map>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "loops/bodies.h"

namespace jf::lower {
namespace {

using namespace loops;
using ir::OpKind;

template <class T, class... Kinds>
constexpr bool is_one_of = (std::is_same_v<T, Kinds> || ...);

// Statements that can stand twice, under a condition: each thread by itself, without arrays of their own.
bool can_be_copied(const Body& body) {
  bool all = true;
  for_each(body, [&](const auto& node) {
    all = all && is_one_of<std::decay_t<decltype(node)>, For, Vector, Guard, Load, FromIndex, Search, Compute, Store,
                           Get, Set, Accumulate, Prefetch>;
  });
  return all;
}

// Calls f with every register that a statement reads.
template <class F>
void for_operands(Stmt& stmt, const F& f) {
  std::visit(
      [&](auto& node) {
        using T = std::decay_t<decltype(node)>;
        if constexpr (is_one_of<T, Load, Prefetch>) {
          for (Step& step : node.steps) f(step.index);
        } else if constexpr (is_one_of<T, Search>) {
          f(node.number);
        } else if constexpr (is_one_of<T, Compute>) {
          for (RegisterId& id : node.operands) f(id);
        } else if constexpr (is_one_of<T, Store, Set, Accumulate>) {
          f(node.value);
        }
      },
      stmt.node);
}

// Calls f with every index of a statement.
template <class F>
void for_indices(Stmt& stmt, const F& f) {
  const auto all = [&](Condition& condition) {
    for (Below& below : condition) f(below.index);
  };
  std::visit(
      [&](auto& node) {
        using T = std::decay_t<decltype(node)>;
        if constexpr (requires { node.offset; }) f(node.offset);
        if constexpr (requires { node.base; }) f(node.base);
        if constexpr (requires { node.at; } && is_one_of<T, Get, Set, Accumulate>) f(node.at);
        if constexpr (is_one_of<T, For>) all(node.runs);
        if constexpr (is_one_of<T, Guard>) all(node.below);
        if constexpr (is_one_of<T, Load, Search>) all(node.when);
        if constexpr (is_one_of<T, Load, Store>) {
          if (node.rows) f(node.rows->row);
        }
        if constexpr (is_one_of<T, Load>) {
          all(node.or_first);
          for (Range& range : node.within) f(range.index);
          if (node.cycle) f(node.cycle->start);
        }
        if constexpr (is_one_of<T, Vector>) {
          all(node.limits);
          if (node.before) f(node.before);
        }
      },
      stmt.node);
}

template <class F>
void for_every(Body& body, const F& f) {
  for (Stmt& stmt : body) {
    f(stmt);
    visit_body(stmt, [&](Body& inner) { for_every(inner, f); });
  }
}

bool has_loads(const Body& body) {
  bool some = false;
  for_each(body, [&](const auto& node) { some = some || is_one_of<std::decay_t<decltype(node)>, Load>; });
  return some;
}

// A body where a register is known to hold, or not to.
class Specialized {
 public:
  Specialized(const Kernel& kernel, RegisterId which, bool holds) : kernel_(kernel), known_{{which, holds}} {}

  Body of(const Body& body) {
    Body result = body;
    replace(result);
    while (drop_unused(result)) {
    }
    return result;
  }

 private:
  RegisterId now(RegisterId id) const {
    const auto found = instead_.find(id);
    return found == instead_.end() ? id : found->second;
  }
  void replace(Body& body) {
    for (Stmt& stmt : body) {
      for_operands(stmt, [&](RegisterId& id) { id = now(id); });
      if (const auto* compute = std::get_if<Compute>(&stmt.node)) note(*compute);
      visit_body(stmt, [&](Body& inner) { replace(inner); });
    }
  }
  void note(const Compute& compute) {
    if (compute.operands.empty()) return;
    const auto known = known_.find(compute.operands[0]);
    if (compute.op == OpKind::kSelect) {
      if (known == known_.end()) return;
      const RegisterId chosen = compute.operands[known->second ? 1 : 2];
      if (kernel_.registers.at(chosen) == kernel_.registers.at(compute.result)) instead_[compute.result] = chosen;
    } else if (compute.op == OpKind::kNot) {
      if (known != known_.end()) known_[compute.result] = !known->second;
    } else if (compute.op == OpKind::kAnd || compute.op == OpKind::kOr) {
      for (size_t i = 0; i < 2; ++i) {
        const auto own = known_.find(compute.operands[i]);
        if (own == known_.end()) continue;
        const bool decides = own->second == (compute.op == OpKind::kOr);
        if (decides) known_[compute.result] = own->second;
        instead_[compute.result] = compute.operands[decides ? i : 1 - i];
      }
    }
  }
  static bool drop_unused(Body& body) {
    std::set<RegisterId> used;
    for_every(body, [&](Stmt& stmt) { for_operands(stmt, [&](RegisterId id) { used.insert(id); }); });
    return drop(body, used);
  }
  static bool drop(Body& body, const std::set<RegisterId>& used) {
    bool some = false;
    for (Stmt& stmt : body) {
      visit_body(stmt, [&](Body& inner) { some = drop(inner, used) || some; });
    }
    const auto gone = std::remove_if(body.begin(), body.end(), [&](const Stmt& stmt) {
      return std::visit(
          [&](const auto& node) {
            using T = std::decay_t<decltype(node)>;
            if constexpr (is_one_of<T, Load, FromIndex, Search, Compute, Get>) return used.count(node.result) == 0;
            if constexpr (is_one_of<T, For, Vector, Guard>) return node.body.empty();
            return false;
          },
          stmt.node);
    });
    some = some || gone != body.end();
    body.erase(gone, body.end());
    return some;
  }

  const Kernel& kernel_;
  std::map<RegisterId, bool> known_;
  std::map<RegisterId, RegisterId> instead_;
};

void drop_prefetches(Body& body) {
  std::erase_if(body, [](const Stmt& stmt) { return std::holds_alternative<Prefetch>(stmt.node); });
  for (Stmt& stmt : body) visit_body(stmt, [](Body& inner) { drop_prefetches(inner); });
}

class Unswitch {
 public:
  explicit Unswitch(Kernel& kernel) : kernel_(kernel) {}

  void run(Body& body) {
    for (size_t i = 0; i < body.size(); ++i) {
      if (auto* loop = std::get_if<For>(&body[i].node)) run(loop->body);
      if (auto* guard = std::get_if<Guard>(&body[i].node)) run(guard->body);
      const auto* compute = std::get_if<Compute>(&body[i].node);
      if (compute == nullptr || compute->operands.empty() || kernel_.registers.at(compute->result) != DType::kPred) {
        continue;
      }
      const RegisterId which = compute->result;
      Body rest(body.begin() + static_cast<std::ptrdiff_t>(i) + 1, body.end());
      if (!can_be_copied(rest) || !has_loads(rest)) continue;
      Body without = Specialized(kernel_, which, false).of(rest);
      drop_prefetches(without);
      if (has_loads(without)) continue;
      renumber(without);
      Body with = Specialized(kernel_, which, true).of(rest);
      body.erase(body.begin() + static_cast<std::ptrdiff_t>(i) + 1, body.end());
      body.push_back({If{which, true, std::move(with)}});
      body.push_back({If{which, false, std::move(without)}});
      return;
    }
  }

 private:
  // Gives variables and registers numbers that nothing else has.
  void renumber(Body& body) {
    int64_t next = next_variable(kernel_);
    std::map<RegisterId, RegisterId> registers;
    for_every(body, [&](Stmt& stmt) {
      std::visit(
          [&](auto& node) {
            if constexpr (requires { node.variable; }) {
              const int64_t old = std::exchange(node.variable, static_cast<int>(next));
              for_every(body, [&](Stmt& other) {
                for_indices(other, [&](IndexPtr& index) { index = replace(index, old, variable(next)); });
              });
              ++next;
            }
            if constexpr (requires { node.result; }) {
              const DType dtype = kernel_.registers.at(node.result);
              kernel_.registers.push_back(dtype);
              registers[std::exchange(node.result, static_cast<RegisterId>(kernel_.registers.size()) - 1)] =
                  static_cast<RegisterId>(kernel_.registers.size()) - 1;
            }
          },
          stmt.node);
    });
    for_every(body, [&](Stmt& stmt) {
      for_operands(stmt, [&](RegisterId& id) {
        if (const auto found = registers.find(id); found != registers.end()) id = found->second;
      });
    });
  }
  Kernel& kernel_;
};

}  // namespace

void unswitch(Kernel& kernel) { Unswitch(kernel).run(kernel.body); }

}  // namespace jf::lower
