#include "plan/parameters.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/integers.h"
#include "base/lists.h"
#include "plan/traffic.h"

namespace jf::plan {
namespace {

constexpr int64_t kMostLanes = 64;      // of a vector axis
constexpr int64_t kMostUnroll = 64;     // more only makes the source longer
constexpr int64_t kMaxCount = 1 << 20;  // of iterations, tasks

// Each structure lists its fields once, for reading and writing.

template <class Visitor>
void fields(CpuPointwise& p, Visitor& visit) {
  visit("collapse", p.collapse);
  visit("lane_loop", p.lane_loop);
  visit("lanes", p.lanes);
  visit("tile_loop", p.tile_loop);
  visit("tile", p.tile);
  visit("along_rows", p.along_rows);
  visit("vectors", p.vectors);
  visit("tasks", p.tasks);
}
template <class Visitor>
void fields(CudaPointwise& p, Visitor& visit) {
  visit("collapse", p.collapse);
  visit("lanes", p.lanes);
  visit("two_axes", p.two_axes);
  visit("threads", p.threads);
  visit("unroll", p.unroll);
}
template <class Visitor>
void fields(CpuReduction& p, Visitor& visit) {
  visit("lane_loop", p.lane_loop);
  visit("lanes", p.lanes);
  visit("chunk", p.chunk);
  visit("rows", p.rows);
  visit("keep", p.keep);
  visit("tasks", p.tasks);
}
template <class Visitor>
void fields(CudaReduction& p, Visitor& visit) {
  visit("along", p.along);
  visit("lane_loop", p.lane_loop);
  visit("lanes", p.lanes);
  visit("threads", p.threads);
  visit("threads_y", p.threads_y);
  visit("unroll", p.unroll);
  visit("keep", p.keep);
  visit("stages", p.stages);
  visit("blocks", p.blocks);
  visit("bulk_store", p.bulk_store);
  visit("cluster", p.cluster);
  visit("keep_columns", p.keep_columns);
  visit("keep_wide", p.keep_wide);
  visit("at_once", p.at_once);
}
template <class Visitor>
void fields(CudaTranspose& p, Visitor& visit) {
  visit("loop", p.loop);
  visit("tile", p.tile);
  visit("lanes", p.lanes);
  visit("threads", p.threads);
}

template <class Visitor>
void fields(NestedParameters& p, Visitor& visit) {
  visit("lanes", p.lanes);
  visit("columns", p.columns);
  visit("rows", p.rows);
  visit("unroll", p.unroll);
  visit("tasks", p.tasks);
  visit("keep", p.keep);
}

// The words of an enumeration that counts from 0 to `last`.
template <class Enum>
std::vector<std::string_view> words(Enum last) {
  std::vector<std::string_view> result;
  for (int i = 0; i <= static_cast<int>(last); ++i) result.push_back(name(static_cast<Enum>(i)));
  return result;
}
std::vector<std::string_view> words_of(Keep) { return words(Keep::kRows); }
std::vector<std::string_view> words_of(ThreadsAlong) { return words(ThreadsAlong::kRuns); }

struct Lines {
  Parameters& to;

  void operator()(const char* field, const std::vector<int>& v) {
    to[field] = std::vector<int64_t>(v.begin(), v.end());
  }
  void operator()(const char* field, bool v) { to[field] = v; }
  void operator()(const char* field, int v) { to[field] = int64_t{v}; }
  void operator()(const char* field, int64_t v) { to[field] = v; }
  template <class Enum>
  void operator()(const char* field, Enum v) {
    to[field] = std::string(name(v));
  }
};

struct Reader {
  std::string_view strategy;
  Parameters left;  // not read yet
  std::string known = "";

  void operator()(const char* field, std::vector<int>& v) {
    const std::optional<std::vector<int64_t>> list = take<std::vector<int64_t>>(field, "a list of integers");
    if (!list) return;
    v.clear();
    for (int64_t n : *list) {
      JF_REQUIRE(n > 0 && n <= kMaxCount, "[", strategy, "] ", field, ": expected positive integers, got ", n);
      v.push_back(static_cast<int>(n));
    }
  }
  void operator()(const char* field, bool& v) { v = take<bool>(field, "True or False").value_or(v); }
  void operator()(const char* field, int64_t& v) {
    v = take<int64_t>(field, "an integer").value_or(v);
    JF_REQUIRE(v > 0 && v <= kMaxCount, "[", strategy, "] ", field, ": expected an integer from 1 to ", kMaxCount,
               ", got ", v);
  }
  void operator()(const char* field, int& v) {  // the number of a loop
    const int64_t loop = take<int64_t>(field, "an integer").value_or(v);
    JF_REQUIRE(loop >= -1 && loop <= kMaxCount, "[", strategy, "] ", field, ": expected the number of a loop, got ",
               loop);
    v = static_cast<int>(loop);
  }
  template <class Enum>
  void operator()(const char* field, Enum& v) {
    const std::optional<std::string> word = take<std::string>(field, "a word");
    if (!word) return;
    const std::vector<std::string_view> expected = words_of(v);
    const auto found = std::find(expected.begin(), expected.end(), *word);
    std::string all;
    for (const std::string_view& one : expected) {
      all += cat(all.empty() ? "" : &one == &expected.back() ? " or " : ", ", one);
    }
    JF_REQUIRE(found != expected.end(), "[", strategy, "] ", field, ": expected ", all, ", got '", *word, "'");
    v = static_cast<Enum>(found - expected.begin());
  }
  void finish() const {
    JF_REQUIRE(left.empty(), "[", strategy, "] it has no parameter '", left.begin()->first, "' here; it has ", known);
  }

 private:
  template <class T>
  std::optional<T> take(const char* field, const char* expected) {
    known += cat(known.empty() ? "" : ", ", field);
    const auto found = left.find(field);
    if (found == left.end()) return std::nullopt;
    const T* value = std::get_if<T>(&found->second);
    const auto* word = std::get_if<std::string>(&found->second);
    JF_REQUIRE(value != nullptr, "[", strategy, "] ", field, ": expected ", expected, ", got ",
               word == nullptr ? jf::print(found->second) : cat("'", *word, "'"));
    T result = *value;
    left.erase(found);
    return result;
  }
};

// Ranges. The rest is checked where the schedule is made and lowered.

struct Checker {
  std::string_view strategy;
  const Target& target;

  void loop(const char* field, int value, int64_t loops, int first = 0) const {
    JF_REQUIRE(value >= first && (value < loops || (loops == 0 && value == 0)), "[", strategy, "] ", field,
               ": expected a loop in [", first, ", ", loops, "), got ", value);
  }
  void lanes(int64_t value) const {
    JF_REQUIRE(is_power_of_two(value) && value <= kMostLanes, "[", strategy, "] lanes: expected a power of two up to ",
               kMostLanes, ", got ", value);
  }
  void at_most(const char* field, int64_t value, int64_t most) const {
    JF_REQUIRE(value <= most, "[", strategy, "] ", field, ": expected at most ", most, ", got ", value);
  }
  void collapse(const std::vector<int>& value, const std::vector<int>& proposed) const {
    const int axes = std::accumulate(value.begin(), value.end(), 0);
    const int rank = std::accumulate(proposed.begin(), proposed.end(), 0);
    JF_REQUIRE(axes == rank, "[", strategy, "] collapse: expected numbers of neighbouring axes that sum to ", rank,
               ", got a sum of ", axes);
  }

  void operator()(const CpuPointwise& p, const CpuPointwise& proposed) const {
    collapse(p.collapse, proposed.collapse);
    const auto loops = static_cast<int64_t>(p.collapse.size());
    loop("lane_loop", p.lane_loop, loops);
    loop("tile_loop", p.tile_loop, loops, -1);
    JF_REQUIRE(p.tile == 1 || p.tile_loop >= 0, "[pointwise] tile: a tile of ", p.tile, " needs a tile_loop");
    JF_REQUIRE(!p.along_rows || p.tile_loop >= 0, "[pointwise] along_rows: tiles along rows need a tile_loop");
    lanes(p.lanes);
    at_most("vectors", p.vectors, kMostUnroll);
  }
  void operator()(const CudaPointwise& p, const CudaPointwise& proposed) const {
    collapse(p.collapse, proposed.collapse);
    lanes(p.lanes);
    at_most("threads", p.threads, target.max_threads_per_block);
    at_most("unroll", p.unroll, kMostUnroll);
  }
  void operator()(const CpuReduction& p, const Traffic& facts) const {
    reduction(p.lane_loop, p.lanes, facts);
    const bool across = contains(facts.across, true);
    JF_REQUIRE(p.rows == 1 || (across && facts.folded[p.lane_loop]),
               "[reduction] rows: nothing folds across rows whose ", "elements are in lanes; expected 1, got ", p.rows);
    at_most("rows", p.rows, kMostUnroll);
  }
  void operator()(const CudaReduction& p, const Traffic& facts) const {
    reduction(p.lane_loop, p.lanes, facts);
    const bool folded = facts.folded[p.lane_loop], columns = p.along == ThreadsAlong::kColumns;
    JF_REQUIRE(folded != columns || p.along == ThreadsAlong::kRows, "[reduction] lane_loop: loop ", p.lane_loop,
               folded ? " is folded" : " is kept", "; threads along ",
               columns ? "columns need a loop that is kept" : "a row need one that is folded");
    const bool runs = p.along == ThreadsAlong::kRuns;
    JF_REQUIRE(runs == contains(facts.runs, true), "[reduction] along: ",
               runs ? "no run of a row is folded by itself; expected another than runs"
                    : cat("runs of rows are folded by themselves; expected runs, got ", name(p.along)));
    JF_REQUIRE(!runs || facts.runs[p.lane_loop], "[reduction] lane_loop: loop ", p.lane_loop,
               " is not that of a run, as threads along runs need");
    const bool kept = contains(facts.folded, false);
    JF_REQUIRE(kept || p.along != ThreadsAlong::kRows, "[reduction] along: there is one row; expected row");
    // Warps fold among themselves.
    JF_REQUIRE(p.threads % kWarp == 0 || kWarp % p.threads == 0, "[reduction] threads: expected a power of two up to ",
               kWarp, " or a multiple of it, got ", p.threads);
    at_most("threads times threads_y", p.threads * p.threads_y, target.max_threads_per_block);
    JF_REQUIRE(p.stages == 1 || p.along == ThreadsAlong::kRow, "[reduction] stages: rows come in ", p.stages,
               " stages where the threads are along a row; expected along='row', got '", name(p.along), "'");
    JF_REQUIRE(p.cluster == 1 || p.along == ThreadsAlong::kRow, "[reduction] cluster: rows of ", p.cluster,
               " blocks need the threads along a row; expected along='row', got '", name(p.along), "'");
    JF_REQUIRE(p.cluster == 1 || (p.threads_y == 1 && !p.bulk_store), "[reduction] cluster: blocks that share a row ",
               "have one row at a time and store it from registers; expected threads_y=1 and bulk_store=False");
    at_most("at_once times threads", p.at_once * p.threads * p.threads_y, 2 * target.max_threads_per_block);
    at_most("stages", p.stages, schedule::kMaxStages);
    at_most("unroll", p.unroll, kMostUnroll);
  }
  void operator()(const CudaTranspose& p) const {
    lanes(p.lanes);
    at_most("threads", p.threads, target.max_threads_per_block);
    JF_REQUIRE(p.tile % p.lanes == 0, "[transpose] tile: expected a multiple of the ", p.lanes, " lanes, got ", p.tile);
  }

  void operator()(const NestedParameters& p) const {
    lanes(p.lanes);
    at_most("columns times rows", p.columns * p.rows, target.max_threads_per_block);
    at_most("unroll", p.unroll, kMostUnroll);
  }

 private:
  void reduction(int lane_loop, int64_t lane_count, const Traffic& facts) const {
    loop("lane_loop", lane_loop, static_cast<int64_t>(facts.extents.size()));
    lanes(lane_count);
  }
};

template <class P>
Parameters written(P parameters) {
  Parameters result;
  Lines writer{result};
  fields(parameters, writer);
  return result;
}

template <class P>
P read(P parameters, std::string_view strategy, const Parameters& given) {
  Reader reader{strategy, given};
  fields(parameters, reader);
  reader.finish();
  return parameters;
}

}  // namespace

Parameters fields_of(const PointwiseParameters& parameters) {
  return std::visit([](const auto& p) { return written(p); }, parameters);
}
Parameters fields_of(const ReductionParameters& parameters) {
  return std::visit([](const auto& p) { return written(p); }, parameters);
}
Parameters fields_of(const CudaTranspose& parameters) { return written(parameters); }
Parameters fields_of(const NestedParameters& parameters) { return written(parameters); }

PointwiseParameters edited(const PointwiseParameters& proposed, const Parameters& given, const Target& target) {
  if (given.empty()) return proposed;
  return std::visit(
      [&](const auto& before) -> PointwiseParameters {
        const auto p = read(before, "pointwise", given);
        Checker{"pointwise", target}(p, before);
        return p;
      },
      proposed);
}

ReductionParameters edited(const ReductionParameters& proposed, const Parameters& given, const ir::Fusion& segment,
                           const Target& target) {
  if (given.empty()) return proposed;
  return std::visit(
      [&](const auto& before) -> ReductionParameters {
        const auto p = read(before, "reduction", given);
        Checker{"reduction", target}(p, reduction_traffic(segment));
        return p;
      },
      proposed);
}

CudaTranspose edited(const CudaTranspose& proposed, const Parameters& given, const Target& target) {
  if (given.empty()) return proposed;
  const CudaTranspose p = read(proposed, "transpose", given);
  Checker{"transpose", target}(p);
  return p;
}

NestedParameters edited(const NestedParameters& proposed, const Parameters& given, const Target& target) {
  if (given.empty()) return proposed;
  const NestedParameters p = read(proposed, "nested", given);
  Checker{"nested", target}(p);
  return p;
}

}  // namespace jf::plan
