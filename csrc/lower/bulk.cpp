#include "lower/bulk.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/integers.h"
#include "graph/index.h"
#include "lower/tile.h"
#include "schedule/axes.h"

namespace jf::lower {
namespace {

using loops::IndexKind;
using loops::IndexPtr;
using schedule::Domain;
using schedule::Parallel;

constexpr int64_t kStageBytes = 128;

// The index where the variables that it moves evenly with are 0.
IndexPtr at_zero(const IndexPtr& index, const std::vector<int64_t>& variables) {
  const auto moves = [&](int64_t v) { return depends(index, v); };
  if (std::none_of(variables.begin(), variables.end(), moves)) return index;
  if (index->kind == IndexKind::kAdd) return add(at_zero(index->a, variables), at_zero(index->b, variables));
  if (index->kind == IndexKind::kMul) return mul(at_zero(index->a, variables), index->b);
  return loops::constant(0);
}

bool divides(int64_t divisor, int64_t number) { return number % divisor == 0; }

class BulkWriter {
 public:
  BulkWriter(const BulkCopy& copy, int& next_variable)
      : copy_(copy), next_variable_(next_variable), indexer_(copy.domain, indices()) {}

  BulkStatements load() {
    Copy copy = is_run() ? find() : Copy{};
    loops::Stmt statement;
    if (copy.global == nullptr) {
      statement.node = tile();
      for (const graph::Bound& bound : indexer_.bounds()) keep_outside(bound, copy);
    } else {
      statement.node = loops::BulkLoad{copy_.shared, copy.shared, copy_.buffer,           copy.global,
                                       copy.rows,    copy.row,    std::move(copy.limits), copy_.skew != nullptr};
    }
    BulkStatements result;
    for (const auto& bound : copy.when) {
      const auto own = [&, &index = bound.index](const Loop& loop) { return depends(index, loop.variable); };
      if (std::none_of(loops_.begin(), loops_.end(), own)) result.when.push_back(bound);
    }
    result.fill = in_loops(std::move(copy.when), std::move(statement));
    result.fill.push_back({result.when, {loops::CommitRing{copy_.shared}}, true});
    return result;
  }
  Guarded store() {
    Copy copy = find();
    return {std::move(copy.when),
            {loops::BulkStore{copy_.buffer, copy.global, copy_.shared, copy.shared, copy.rows, copy.row,
                              std::move(copy.limits)}},
            true};
  }

 private:
  // Runs of elements, as in loops::BulkLoad.
  struct Copy {
    IndexPtr global, shared;
    int64_t rows = 1, row = 1;
    loops::Condition limits = {}, when = {};
  };
  // A bulk axis of more than one element.
  struct Axis : BulkAxis {
    int64_t step = 0;
  };
  struct Loop {
    int64_t variable, extent;
    loops::Parallel parallel;
  };

  const std::string& name() const { return copy_.fusion.values[copy_.value].name; }
  int64_t element_bytes() const { return size_of(copy_.fusion.values[copy_.value].dtype); }

  IndexPtr in_global() const { return add(indexer_.position(copy_.weights).at, loops::constant(copy_.offset)); }
  // Whether the copied elements are consecutive in both memories.
  bool is_run() const {
    const IndexPtr global = in_global(), shared = copy_.in_shared(indexer_);
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (const Axis& axis : axes_) {
      const std::optional<int64_t> step = step_of(global, axis.variable);
      if (!step || step_of(shared, axis.variable) != step) return false;
      steps.emplace_back(*step, axis.extent);
    }
    std::sort(steps.begin(), steps.end());
    int64_t expected = 1;
    return std::all_of(steps.begin(), steps.end(), [&](const auto& axis) {
      const bool goes_on = axis.first == expected;
      expected *= axis.second;
      return goes_on;
    });
  }
  loops::TileLoad tile() const {
    TileRequest request{name(), copy_.fusion.values[copy_.value].dtype, copy_.buffer};
    request.shape = copy_.domain.logical;
    for (size_t a = 0; a < request.shape.size(); ++a) {
      std::vector<int64_t> weights(request.shape.size(), 0);
      weights[a] = 1;
      request.axes.push_back(indexer_.position(weights).at);
    }
    request.shared = copy_.in_shared(indexer_);
    request.bulk.assign(axes_.begin(), axes_.end());
    Tile tile = find_tile(request);
    std::vector<loops::TensorMap>& maps = copy_.kernel.maps;
    const auto known = std::find(maps.begin(), maps.end(), tile.map);
    const int number = static_cast<int>(known - maps.begin());
    if (known == maps.end()) maps.push_back(std::move(tile.map));
    return {copy_.shared, std::move(tile.to), number, std::move(tile.at)};
  }

  Copy find() {
    const IndexPtr global = in_global(), shared = copy_.in_shared(indexer_);
    sort_axes(global, shared);
    Copy copy{at_zero(global, variables_), at_zero(shared, variables_)};
    for (const Axis& axis : axes_) copy.rows *= axis.extent;
    for (const graph::Bound& bound : indexer_.bounds()) limit(bound, copy);
    if (copy_.skew != nullptr && copy.limits.empty() && begin_alike(copy.global)) {
      check_begin(copy.shared, "shared memory");
      copy.shared = add(std::move(copy.shared), copy_.skew);
    } else {
      check_bytes(copy);
    }
    return copy;
  }
  // Whether the copies of the value's own loops begin as far into what the instruction moves.
  bool begin_alike(const IndexPtr& global) const {
    return std::all_of(loops_.begin(), loops_.end(), [&](const Loop& loop) {
      const std::optional<int64_t> step = step_of(global, loop.variable);
      return step && divides(kBulkBytes, *step * element_bytes());
    });
  }
  // The statement in the value's own loops.
  std::vector<Guarded> in_loops(loops::Condition when, loops::Stmt statement) const {
    std::vector<Guarded> statements;
    statements.push_back({std::move(when), std::move(statement), true});
    for (size_t i = loops_.size(); i-- > 0;) {
      Guarded around = enclose(std::move(statements), loops_[i].variable, {});
      auto& loop = std::get<loops::For>(around.stmt.node);
      loop.extent = loops_[i].extent;
      loop.parallel = loops_[i].parallel;
      statements.clear();
      statements.push_back(std::move(around));
    }
    return statements;
  }

  std::vector<IndexPtr> indices() {
    std::vector<IndexPtr> result = copy_.outer;
    for (size_t p = result.size(); p < copy_.domain.loop.size(); ++p) {
      const auto [extent, parallel] = copy_.domain.loop[p];
      if (extent == 1) {
        result.push_back(loops::constant(0));
        continue;
      }
      const int64_t variable = next_variable_++;
      result.push_back(loops::variable(variable));
      if (parallel == Parallel::kBulk) {
        axes_.push_back({{static_cast<int>(p), variable, extent}});
        variables_.push_back(variable);
      } else {
        loops_.push_back({variable, extent,
                          parallel == Parallel::kUnroll    ? loops::Parallel::kUnroll
                          : parallel == Parallel::kCluster ? loops::Parallel::kCluster
                                                           : loops::Parallel::kSerial});
      }
    }
    return result;
  }

  // Fastest first, each going on where the one before ends, in both memories.
  void sort_axes(const IndexPtr& global, const IndexPtr& shared) {
    for (Axis& axis : axes_) {
      const std::optional<int64_t> step = step_of(global, axis.variable);
      JF_REQUIRE(
          step.has_value(), "[lower] bulk axis ", axis.position, " of ", name(), " moves unevenly through ",
          "global memory; one copy moves consecutive elements: split the axis and make only its inner part bulk");
      axis.step = *step;
    }
    std::sort(axes_.begin(), axes_.end(), [](const Axis& a, const Axis& b) { return a.step < b.step; });
    int64_t expected = 1;
    for (const Axis& axis : axes_) {
      JF_REQUIRE(axis.step == expected, "[lower] bulk axis ", axis.position, " of ", name(), " moves by ", axis.step,
                 " elements in global memory; expected ", expected,
                 ", since one copy moves consecutive elements: make it serial");
      const std::optional<int64_t> there = step_of(shared, axis.variable);
      JF_REQUIRE(there == axis.step, "[lower] bulk axis ", axis.position, " of ", name(), " moves by ",
                 there ? cat(*there) : std::string("no fixed number of"), " elements in shared memory and by ",
                 axis.step,
                 " in global memory; store its axes in the same order there, without pad: see "
                 "set_allocation");
      expected *= axis.extent;
    }
  }

  // A bound that does not move with the copied elements; elements of a tile may be there though nobody reads them.
  void keep_outside(const graph::Bound& bound, Copy& copy) const {
    const IndexPtr& at = bound.index.at;
    const bool always = at->kind == IndexKind::kConst && at->value < bound.bound;
    const bool moves =
        std::any_of(variables_.begin(), variables_.end(), [&](int64_t variable) { return depends(at, variable); });
    if (!always && !moves) copy.when.push_back({at, bound.bound});
  }
  // A bound that moves with the copied elements shortens the copy; the others are conditions.
  void limit(const graph::Bound& bound, Copy& copy) {
    const IndexPtr& at = bound.index.at;
    const IndexPtr first = at_zero(at, variables_);
    int64_t unit = 0, along = 1;  // elements that move the index by one; elements of the faster axes
    for (const Axis& axis : axes_) {
      const std::optional<int64_t> step = step_of(at, axis.variable);
      if (unit == 0 && step != 0) unit = along;
      JF_REQUIRE(step.has_value() && (unit == 0 ? 0 : along / unit) == *step, "[lower] bulk axis ", axis.position,
                 " of ", name(), " ends inside of the copy, at ", bound.bound,
                 ", where other axes go on; split it by a factor that divides it");
      along *= axis.extent;
    }
    if (unit == 0) return keep_outside(bound, copy);
    JF_REQUIRE(unit_ == 0 || unit_ == unit, "[lower] ", name(),
               " has bulk axes that end at several places; split them by factors that divide them");
    if (unit_ == 0) copy.rows = along / unit;
    copy.row = unit_ = unit;
    if (first->kind == IndexKind::kConst) {
      copy.rows = std::min(copy.rows, bound.bound - first->value);
    } else {
      copy.limits.push_back({first, bound.bound});
    }
  }

  void check_bytes(const Copy& copy) const {
    int64_t whole = copy.rows;
    for (const loops::Below& limit : copy.limits) {
      whole = std::gcd(std::gcd(whole, limit.bound), graph::multiple_of(limit.index));
    }
    JF_REQUIRE(divides(kBulkBytes, whole * copy.row * element_bytes()), "[lower] the bulk axes of ", name(), " copy ",
               copy.rows * copy.row, copy.limits.empty() ? "" : " or fewer", " elements of ", element_bytes(),
               " bytes; expected a multiple of ", kBulkBytes, " bytes: choose another split, or copy by threads");
    check_begin(copy.global, "global memory");
    check_begin(copy.shared, "shared memory");
  }
  void check_begin(const IndexPtr& at, const char* where) const {
    const int64_t multiple = graph::multiple_of(at);
    JF_REQUIRE(divides(kBulkBytes, multiple * element_bytes()), "[lower] the bulk copies of ", name(),
               " begin at multiples of ", multiple, " elements of ", element_bytes(), " bytes in ", where,
               "; expected multiples of ", kBulkBytes, " bytes: copy by threads, or make rows multiples of ",
               kBulkBytes / std::gcd(kBulkBytes, element_bytes()), " elements long");
  }

  const BulkCopy& copy_;
  int& next_variable_;
  std::vector<Axis> axes_;
  std::vector<int64_t> variables_;  // of the bulk axes
  std::vector<Loop> loops_;         // outermost first
  int64_t unit_ = 0;                // of the limits, in elements; 0 where there are none
  graph::Indexer indexer_;          // last: it takes what the others hold
};

}  // namespace

BulkStatements write_bulk(const BulkCopy& copy, int& next_variable) { return BulkWriter(copy, next_variable).load(); }

Guarded write_bulk_store(const BulkCopy& copy, int& next_variable) { return BulkWriter(copy, next_variable).store(); }

bool has_skew(const Domain& domain, DType dtype) {
  int64_t bytes = size_of(dtype);
  for (const schedule::LoopAxis& axis : domain.loop) {
    if (axis.parallel == Parallel::kBulk) bytes *= axis.extent;
  }
  return domain.memory == schedule::Memory::kShared && !divides(kBulkBytes, bytes) && size_of(dtype) < kBulkBytes;
}

IndexPtr skew_of(const IndexPtr& begin, DType dtype) {
  return mod(begin, loops::constant(kBulkBytes / size_of(dtype)));
}

int64_t stage_alignment(const Domain& domain) {
  const bool swizzles = std::any_of(domain.transforms.begin(), domain.transforms.end(), [](const auto& transform) {
    return std::holds_alternative<schedule::Swizzle>(transform);
  });
  return swizzles ? kSwizzleAlignment : kStageBytes;
}

int64_t stage_size(int64_t elements, const Domain& domain, DType dtype) {
  if (has_skew(domain, dtype)) elements += kBulkBytes / size_of(dtype) - 1;
  return round_up(elements, stage_alignment(domain) / size_of(dtype));
}

}  // namespace jf::lower
