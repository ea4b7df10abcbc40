#include "lower/nest.h"

#include <algorithm>

#include "base/error.h"

namespace jf::lower {
namespace {

using loops::Body;
using loops::IndexKind;
using loops::IndexPtr;
using schedule::Parallel;

loops::Parallel to_loops(Parallel parallel) {
  switch (parallel) {
    case Parallel::kSerial:
    case Parallel::kVector: return loops::Parallel::kSerial;  // lanes have no loop
    case Parallel::kUnroll: return loops::Parallel::kUnroll;
    case Parallel::kTask: return loops::Parallel::kTask;
    case Parallel::kBlock: return loops::Parallel::kBlock;
    case Parallel::kThread: return loops::Parallel::kThread;
  }
  throw InternalError(__FILE__, __LINE__, "parallel type", "");
}

// The innermost loop that an index depends on; -1 for none.
int innermost(const IndexPtr& index) {
  if (index->kind == IndexKind::kConst) return -1;
  if (index->kind == IndexKind::kVar) return static_cast<int>(index->value);
  return std::max(innermost(index->a), innermost(index->b));
}

Body one(loops::Stmt statement) {
  Body body;
  body.push_back(std::move(statement));
  return body;
}

}  // namespace

graph::Indexer indexer_in(const Nest& nest, schedule::Domain domain) {
  if (!nest.lane && !domain.loop.empty() && domain.loop.back().parallel == Parallel::kVector) {
    domain.loop.back().parallel = Parallel::kSerial;
  }
  graph::Indexer indexer(domain, nest.indices);
  if (nest.lane) indexer.use_lane(*nest.lane);
  return indexer;
}

std::optional<Nest> make_nest(const schedule::Domain& domain, bool lanes) {
  Nest nest;
  nest.axes = domain.loop;
  const int rank = static_cast<int>(domain.loop.size());
  for (int i = 0; i < rank; ++i) {
    nest.indices.push_back(domain.loop[i].extent == 1 ? loops::constant(0) : loops::variable(i));
  }
  lanes = lanes && rank > 0 && domain.loop.back().parallel == Parallel::kVector;
  if (lanes) nest.lane = {loops::variable(rank - 1), graph::Indexer(domain, nest.indices).lane_base()};
  for (const graph::Bound& bound : indexer_in(nest, domain).bounds()) {
    if (bound.index.lane_step == 0) {
      nest.below.push_back({bound.index.at, bound.bound});
    } else {
      const bool is_limit = bound.index.lane_step == 1 && graph::same(bound.index.at, nest.lane->variable);
      if (!is_limit || nest.lane_limit) return std::nullopt;
      nest.lane_limit = bound.bound;
    }
  }
  return nest;
}

Body wrap(const Nest& nest, Body body) {
  const int rank = static_cast<int>(nest.axes.size());
  for (int loop = rank - 1; loop >= -1; --loop) {
    loops::Guard guard;
    for (const auto& below : nest.below) {
      if (innermost(below.first) == loop) guard.below.push_back(below);
    }
    if (!guard.below.empty()) {
      guard.body = std::move(body);
      body = one({std::move(guard)});
    }
    if (nest.lane && loop == rank - 1) {
      body =
          one({loops::Vector{loop, nest.lane->base, nest.lane_limit.value_or(0), !nest.lane_limit, std::move(body)}});
    } else if (loop >= 0 && nest.axes[loop].extent != 1) {
      body = one({loops::For{loop, nest.axes[loop].extent, to_loops(nest.axes[loop].parallel), std::move(body)}});
    }
  }
  return body;
}

}  // namespace jf::lower
