// What the ops of a kernel compute from: loads, elements of arrays and shared memory, registers of other items; and
// under which condition.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/target.h"
#include "graph/index.h"
#include "lower/index_reads.h"
#include "lower/places.h"
#include "schedule/axes.h"

namespace jf::lower {

// A part of the writer of the statements (lower/write.cpp), which it emits in their order.
class Operands : protected Places {
 protected:
  using RegisterId = loops::RegisterId;
  Operands(const ir::Fusion& fusion, const schedule::Schedule& schedule, const LoopTree& tree, Platform platform,
           loops::Kernel& kernel)
      : Places(fusion, schedule, tree, kernel),
        on_cpu_(platform == Platform::kCpu),
        reads_(input_number_),
        register_of_(fusion.values.size(), -1) {}

  template <class Statement>
  void emit(Statement statement, loops::Condition when = {}) {
    statements_.push_back({std::move(when), {std::move(statement)}});
  }

  struct Place {
    loops::IndexPtr at;
    int64_t lane_step;
  };
  RegisterId new_register(DType dtype);
  std::vector<IndexRead> counts(const Item& item);
  std::vector<IndexRead> starts(const Item& item);
  graph::Indexer indexer(const Item& item, bool use_lane) const;
  // Under which condition the item's iteration exists; also finds where its lanes end.
  loops::Condition bounds(const Item& item, const graph::Indexer& at);
  Place position(const graph::Indexer& indexer, const std::vector<int64_t>& weights);
  // An element of input `id`, at weights of the root axes.
  RegisterId load(ir::ValueId id, const graph::Indexer& indexer, const schedule::Reading& from,
                  const loops::Condition& when, const std::vector<loops::Range>& within = {});
  RegisterId load_at(ir::ValueId id, const graph::Indexer& indexer, const schedule::Reading& from,
                     const loops::IndexPtr& place, const loops::Condition& when,
                     const std::vector<loops::Range>& within, int64_t row_step = 0,
                     const std::optional<loops::Rows>& rows = {});
  // Where a reading finds an element: all lanes or none, where that is known, else each lane by itself.
  std::vector<loops::Range> ranges(const Item& item, const schedule::Reading& from);
  RegisterId load_shared(ir::ValueId id, const graph::Indexer& indexer, const std::vector<int>& root_of,
                         const loops::Condition& when);
  RegisterId computed(ir::ValueId id, const Item& user);
  RegisterId operand(const Item& item, size_t i, const graph::Indexer& indexer, const loops::Condition& when);
  RegisterId take(const Item& item, const graph::Indexer& at, const loops::Condition& when);
  RegisterId search(const Item& item, const graph::Indexer& at, const loops::Condition& when);
  // A row that begins where memory says, or the last one.
  RegisterId partition(const Item& item, const graph::Indexer& at, const loops::Condition& when);
  // Whether the lanes of an item read different elements of an operand with the same axes.
  bool differs_in_lanes(const Item& item, ir::ValueId operand) const;

  const bool on_cpu_;  // where lanes may go round and have several limits
  IndexReads reads_;
  std::vector<RegisterId> register_of_;      // by value
  std::vector<Guarded> statements_;          // of the body being written
  std::optional<graph::LaneVariable> lane_;  // inside a Vector
  loops::Condition lane_limits_;             // of the Vector
  bool any_item_ = false;
  bool even_ = true;  // whether every bound and access follows the lanes

  struct Loaded {
    loops::IndexPtr at;
    int64_t lane_step;
    std::optional<loops::Cycle> cycle;
    loops::Condition when;
    std::vector<loops::Range> within;
    RegisterId result;
  };
  std::vector<std::pair<ir::ValueId, Loaded>> loads_;  // in scope
};

}  // namespace jf::lower
