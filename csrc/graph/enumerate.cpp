#include "graph/enumerate.h"

#include "base/error.h"
#include "graph/index.h"

namespace jf::graph {
namespace {

constexpr int64_t kMaxIterations = int64_t{1} << 22;

// The position at one iteration. Where lanes are not evenly spaced, a kernel runs the axis as a serial loop.
int64_t evaluate(const Position& in_lanes, const Position& serial, std::span<const int64_t> loops) {
  if (!in_lanes.lane_step) return loops::evaluate(serial.at, loops);
  const int64_t lane = loops.empty() ? 0 : loops.back();
  return loops::evaluate(in_lanes.at, loops) + lane * *in_lanes.lane_step;
}

}  // namespace

std::vector<std::optional<int64_t>> positions(const schedule::Domain& domain, std::span<const int64_t> weights,
                                              const std::string& value) {
  JF_REQUIRE(weights.size() == domain.logical.size(), "[positions] ", value, " has ", domain.logical.size(),
             " root axes, got ", weights.size(), " weights");
  std::vector<loops::IndexPtr> variables;
  int64_t iterations = 1;
  for (size_t i = 0; i < domain.loop.size(); ++i) {
    const int64_t extent = domain.loop[i].extent;
    variables.push_back(extent == 1 ? loops::constant(0) : loops::variable(static_cast<int64_t>(i)));
    JF_REQUIRE(extent == 0 || iterations <= kMaxIterations / extent, "[positions] the loops of ", value,
               " have more than ", kMaxIterations, " iterations; ask for a smaller shape");
    iterations *= extent;
  }
  schedule::Domain serial_domain = domain;
  const bool lanes = !domain.loop.empty() && domain.loop.back().parallel == schedule::Parallel::kVector;
  if (lanes) serial_domain.loop.back().parallel = schedule::Parallel::kSerial;
  const Indexer in_lanes(domain, variables), serial(serial_domain, variables);

  const Position lane_position = in_lanes.position(weights), serial_position = serial.position(weights);
  const std::vector<Bound> lane_bounds = in_lanes.bounds(), serial_bounds = serial.bounds();

  std::vector<std::optional<int64_t>> result;
  std::vector<int64_t> loops(domain.loop.size(), 0);
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    bool exists = true;
    for (size_t i = 0; i < lane_bounds.size(); ++i) {
      const Bound& bound = lane_bounds[i].index.lane_step ? lane_bounds[i] : serial_bounds[i];
      exists = exists && evaluate(lane_bounds[i].index, serial_bounds[i].index, loops) < bound.bound;
    }
    result.push_back(exists ? std::optional(evaluate(lane_position, serial_position, loops)) : std::nullopt);
    for (size_t i = loops.size(); i-- > 0;) {
      if (++loops[i] < domain.loop[i].extent) break;
      loops[i] = 0;
    }
  }
  return result;
}

}  // namespace jf::graph
