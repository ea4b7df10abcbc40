#include "lower/prefetch.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/fusion.h"
#include "loops/bodies.h"
#include "lower/guards.h"

namespace jf::lower {
namespace {

using loops::Body;
using loops::For;
using loops::Kernel;
using loops::Load;
using loops::Stmt;

// What an op that is no single instruction costs.
constexpr int64_t kDear = 8;

template <class F>
void for_each_body(Body& body, const F& f) {
  for (Stmt& stmt : body) {
    loops::visit_body(stmt, [&](Body& inner) { for_each_body(inner, f); });
  }
  f(body);
}

int64_t cost_of(Body& pass) {
  int64_t cost = 0;
  for_each_body(pass, [&](Body& body) {
    for (const Stmt& stmt : body) {
      const auto* compute = std::get_if<loops::Compute>(&stmt.node);
      if (compute != nullptr) cost += ir::info(compute->op).operands == ir::OperandTypes::kFloating ? kDear : 1;
    }
  });
  return cost;
}

// The place itself where an index is brought into an array: what is fetched ahead may lie behind its end.
loops::IndexPtr unclamped(const loops::IndexPtr& index) {
  switch (index->kind) {
    case loops::IndexKind::kMin: return unclamped(index->a);
    case loops::IndexKind::kAdd: return loops::add(unclamped(index->a), unclamped(index->b));
    case loops::IndexKind::kMul: return loops::mul(unclamped(index->a), unclamped(index->b));
    default: return index;
  }
}

// How far the load is from that of the next row, where it is contiguous and certain.
std::optional<int64_t> row_of(const Kernel& kernel, const Load& load, const For& rows) {
  if (load.lane_stride != 1 || !is_plain(load)) return std::nullopt;
  const std::optional<int64_t> row = step_of(unclamped(load.offset), rows.variable);
  const int64_t bytes = row.value_or(0) * size_of(kernel.buffers[load.buffer].dtype);
  return bytes >= kShortestRow && bytes <= kLongestRow ? row : std::nullopt;
}

// Passes that load a buffer, the dearest first; the later one of two.
using Passes = std::vector<std::pair<int64_t, For*>>;

// A pass that fetches two buffers has memory wait for it, and the next pass wait for memory: each buffer gets a pass of
// its own, as far as they go, and the dearest, which has most time.
std::map<int, For*> share_out(const std::map<int, Passes>& loading) {
  std::vector<std::pair<int, const Passes*>> order;
  for (const auto& [buffer, passes] : loading) order.emplace_back(buffer, &passes);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second->size() < b.second->size(); });
  std::map<For*, int> fetched;
  std::map<int, For*> chosen;
  for (const auto& [buffer, passes] : order) {
    const auto best = std::min_element(passes->begin(), passes->end(), [&](const auto& a, const auto& b) {
      return fetched[a.second] < fetched[b.second];
    });
    ++fetched[best->second];
    chosen[buffer] = best->second;
  }
  return chosen;
}

void prefetch_in(const Kernel& kernel, For& rows) {
  std::map<int, Passes> loading;
  for (Stmt& stmt : loops::inside(rows)) {
    auto* pass = std::get_if<For>(&stmt.node);
    if (pass == nullptr) continue;
    const int64_t cost = cost_of(pass->body);
    std::set<int> loads;
    for_each_body(pass->body, [&](Body& body) {
      for (const Stmt& inner : body) {
        const auto* load = std::get_if<Load>(&inner.node);
        if (load != nullptr && row_of(kernel, *load, rows)) loads.insert(load->buffer);
      }
    });
    for (const int buffer : loads) loading[buffer].insert(loading[buffer].begin(), {cost, pass});
  }
  for (auto& [buffer, passes] : loading) {
    std::stable_sort(passes.begin(), passes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  }
  for (const auto& [buffer, pass] : share_out(loading)) {
    bool done = false;
    for_each_body(pass->body, [&, wanted = buffer](Body& body) {
      for (size_t i = 0; i < body.size() && !done; ++i) {
        const auto* load = std::get_if<Load>(&body[i].node);
        if (load == nullptr || load->buffer != wanted) continue;
        const std::optional<int64_t> row = row_of(kernel, *load, rows);
        if (!row) continue;
        done = true;
        body.insert(body.begin() + i, Stmt{loops::Prefetch{wanted, loops::moved(unclamped(load->offset), *row)}});
      }
    });
  }
}

}  // namespace

void prefetch_rows(Kernel& kernel) {
  for_each_body(kernel.body, [&](Body& body) {
    for (Stmt& stmt : body) {
      auto* rows = std::get_if<For>(&stmt.node);
      const bool walks = rows != nullptr && rows->parallel == loops::Parallel::kSerial && !rows->reverse;
      if (walks && rows->extent > 1) prefetch_in(kernel, *rows);
    }
  });
}

}  // namespace jf::lower
