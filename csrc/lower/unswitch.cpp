#include "lower/unswitch.h"

#include <algorithm>
#include <iterator>
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

// Statements that can stand twice, under a condition that all threads agree on, or each has its own.
bool can_be_copied(const Body& body, bool together) {
  bool all = true;
  for_each(body, [&](const auto& node) {
    using T = std::decay_t<decltype(node)>;
    bool of_block = false;
    if constexpr (is_one_of<T, Combine>) of_block = !node.cluster;
    all = all && (is_one_of<T, For, Vector, Guard, Load, FromIndex, Search, Compute, Store, Get, Set, Accumulate,
                            Declare, Prefetch> ||
                  (of_block && together));
  });
  return all;
}
template <class Kind>
bool has(const Body& body) {
  bool some = false;
  for_each(body, [&](const auto& node) { some = some || is_one_of<std::decay_t<decltype(node)>, Kind>; });
  return some;
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

// A body where a register is known to hold, or not to.
class Specialized {
 public:
  Specialized(const Kernel& kernel, RegisterId which, bool holds) : kernel_(kernel), known_{{which, holds}} {}

  Body of(const Body& body) {
    Body result = body;
    replace(result);
    drop_unused(result);
    return result;
  }

  // Drops what nothing reads: registers, and arrays that come to life in the body.
  static void drop_unused(Body& body) {
    while (drop_some(body)) {
    }
  }

 private:
  // Returns whether there was any.
  static bool drop_some(Body& body) {
    std::set<RegisterId> used;
    std::set<int> idle;
    for_every(body, [&](Stmt& stmt) {
      for_operands(stmt, [&](RegisterId id) { used.insert(id); });
      if (const auto* declare = std::get_if<Declare>(&stmt.node)) idle.insert(declare->array);
    });
    for_every(body, [&](Stmt& stmt) {
      if (const auto* get = std::get_if<Get>(&stmt.node)) idle.erase(get->array);
    });
    return drop(body, used, idle);
  }
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
  static bool drop(Body& body, const std::set<RegisterId>& used, const std::set<int>& idle) {
    bool some = false;
    for (Stmt& stmt : body) {
      visit_body(stmt, [&](Body& inner) { some = drop(inner, used, idle) || some; });
      if (auto* combine = std::get_if<Combine>(&stmt.node)) {
        std::erase_if(combine->arrays, [&](int array) { return idle.count(array) > 0; });
      }
    }
    const size_t before = body.size();
    std::erase_if(body, [&](const Stmt& stmt) {
      return std::visit(
          [&](const auto& node) {
            using T = std::decay_t<decltype(node)>;
            if constexpr (is_one_of<T, Load, FromIndex, Search, Compute, Get>) return used.count(node.result) == 0;
            if constexpr (is_one_of<T, Set, Accumulate, Declare>) return idle.count(node.array) > 0;
            if constexpr (is_one_of<T, Combine>) return node.arrays.empty();
            if constexpr (is_one_of<T, For, Vector, Guard>) return node.body.empty();
            return false;
          },
          stmt.node);
    });
    return some || body.size() < before;
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
  explicit Unswitch(Kernel& kernel) : kernel_(kernel), next_variable_(next_variable(kernel)) {}

  void run(Body& body, bool together = true) {
    for (size_t i = 0; i < body.size(); ++i) {
      if (auto* loop = std::get_if<For>(&body[i].node)) {
        const bool threads = loop->parallel == loops::Parallel::kThread || loop->parallel == loops::Parallel::kThreadY;
        run(loop->body, together && !threads);
        if (is_unrolled_choice(*loop)) i += join(body, i, together);
      } else if (auto* guard = std::get_if<Guard>(&body[i].node)) {
        run(guard->body, false);
      }
    }
    for (size_t i = 0; i < body.size() && !split(body, i, together); ++i) {
    }
  }

 private:
  // Unrolled iterations that each choose between two bodies, and may as well overlap.
  static bool is_unrolled_choice(const For& loop) {
    const size_t n = loop.body.size();
    if (loop.parallel != loops::Parallel::kUnroll || loop.extent < 2 || !loop.runs.empty() || n < 2) return false;
    const auto* with = std::get_if<If>(&loop.body[n - 2].node);
    return with != nullptr && std::holds_alternative<If>(loop.body[n - 1].node) && !has<Combine>(with->body);
  }
  // Where all iterations of loop i choose the first body, they run without asking: their loads do not wait for each
  // other, as behind branches they would. Returns how many statements now stand before the last.
  size_t join(Body& body, size_t i, bool together) {
    const For loop = std::get<For>(body[i].node);
    const Body first(loop.body.begin(), loop.body.end() - 2);
    const If& with = std::get<If>(loop.body[loop.body.size() - 2].node);
    const int array = static_cast<int>(kernel_.arrays.size());
    kernel_.arrays.push_back({"all_hold", DType::kPred, 1});
    const auto again = [&](Body rest) {
      For copy = loop;
      copy.body = first;
      std::move(rest.begin(), rest.end(), std::back_inserter(copy.body));
      Specialized::drop_unused(copy.body);
      Body result;
      result.push_back({std::move(copy)});
      renumber(result);
      return result;
    };
    Body count, joined;
    count.push_back({Accumulate{array, constant(0), OpKind::kAnd, with.which}});
    kernel_.registers.push_back(DType::kPred);
    const auto all = static_cast<RegisterId>(kernel_.registers.size()) - 1;
    joined.push_back({Declare{array, OpKind::kAnd}});
    joined.push_back(std::move(again(std::move(count)).front()));
    joined.push_back({Get{all, array, constant(0)}});
    joined.push_back({If{all, true, together, again(with.body)}});
    Body one_by_one;
    one_by_one.push_back(std::move(body[i]));
    joined.push_back({If{all, false, together, std::move(one_by_one)}});
    body.erase(body.begin() + static_cast<std::ptrdiff_t>(i));
    body.insert(body.begin() + static_cast<std::ptrdiff_t>(i), std::make_move_iterator(joined.begin()),
                std::make_move_iterator(joined.end()));
    return joined.size() - 1;
  }
  // Makes two of a body by the condition that statement i computes, if that is one, and pays.
  bool split(Body& body, size_t i, bool together) {
    const auto* compute = std::get_if<Compute>(&body[i].node);
    if (compute == nullptr || compute->operands.empty() || kernel_.registers.at(compute->result) != DType::kPred) {
      return false;
    }
    const RegisterId which = compute->result;
    auto [first, rest] = taken_apart(body, i);
    if (!can_be_copied(rest, together) || !has<Load>(rest)) return false;
    Body without = Specialized(kernel_, which, false).of(rest);
    drop_prefetches(without);
    if (has<Load>(without) || has<Declare>(without)) return false;
    renumber(without);
    Body with = Specialized(kernel_, which, true).of(rest);
    first.push_back({If{which, true, together, std::move(with)}});
    first.push_back({If{which, false, together, std::move(without)}});
    body = std::move(first);
    return true;
  }
  // What statement i is computed from in the body, and all else; where that is more than arithmetic, all up to i.
  static std::pair<Body, Body> taken_apart(const Body& body, size_t i) {
    std::set<RegisterId> needed = {std::get<Compute>(body[i].node).result};
    std::vector<bool> goes_first(body.size(), false);
    bool computed = true;
    for (size_t at = i + 1; at-- > 0;) {
      Stmt stmt = body[at];
      std::visit(
          [&](const auto& node) {
            if constexpr (requires { node.result; }) {
              if (needed.count(node.result) == 0) return;
              goes_first[at] = true;
              computed = computed && is_one_of<std::decay_t<decltype(node)>, Compute, FromIndex>;
            }
          },
          stmt.node);
      if (goes_first[at]) for_operands(stmt, [&](RegisterId id) { needed.insert(id); });
    }
    Body first, rest;
    for (size_t at = 0; at < body.size(); ++at) {
      (goes_first[at] || (!computed && at <= i) ? first : rest).push_back(body[at]);
    }
    return {std::move(first), std::move(rest)};
  }
  // Gives variables and registers numbers that nothing else has.
  void renumber(Body& body) {
    std::map<RegisterId, RegisterId> registers;
    for_every(body, [&](Stmt& stmt) {
      std::visit(
          [&](auto& node) {
            if constexpr (requires { node.variable; }) {
              const int64_t old = std::exchange(node.variable, next_variable_);
              for_every(body, [&](Stmt& other) {
                for_indices(other, [&](IndexPtr& index) { index = replace(index, old, variable(next_variable_)); });
              });
              ++next_variable_;
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
  int next_variable_;
};

}  // namespace

void unswitch(Kernel& kernel) { Unswitch(kernel).run(kernel.body); }

}  // namespace jf::lower
