#include "lower/scan.h"

#include "base/error.h"
#include "schedule/axes.h"

namespace jf::lower {

using schedule::AxisTree;
using schedule::Domain;
using schedule::Parallel;

bool is_scan(const Item& item) { return item.op != nullptr && ir::info(item.op->kind).op_class == ir::OpClass::kScan; }

bool is_complete_later(const Item& item, const schedule::Schedule& schedule) {
  return is_fold(item) || (is_scan(item) && schedule::scan_position(schedule.domains[item.value], "a value") >= 0);
}

ScanLoops scan_loops(const LoopTree& tree, const Item& item, const schedule::Schedule& schedule) {
  const Domain& domain = schedule.domains[item.value];
  const AxisTree axes = schedule::replay(domain, "a value");
  ScanLoops result;
  result.together = is_complete_later(item, schedule);
  bool past_threads = false;
  for (size_t p = 0; p < item.loops.size(); ++p) {
    if (item.loops[p] < 0) continue;
    const auto& [extent, parallel, direction] = tree.loops[item.loops[p]];
    const bool along = axes.scanned[axes.loop[p]] != 0;
    const bool in_carry = !result.together || static_cast<int>(p) < item.shared;
    if (along && parallel == Parallel::kVector) result.lanes = true;
    if (extent == 1) continue;
    if (along && is_thread(parallel)) past_threads = true;
    if (!is_serial(parallel)) continue;
    if (!in_carry) {
      if (along && past_threads) result.run *= extent;
    } else if (along) {
      result.carrying.push_back(static_cast<int>(p));
      if (result.carried < 0) result.carried = static_cast<int>(p);
    } else if (result.carried >= 0) {
      result.beside.push_back(static_cast<int>(p));
    }
  }
  return result;
}

void check_scan(const ir::Fusion& segment, ir::ValueId value, const Domain& domain) {
  const std::string& name = segment.values[value].name;
  const AxisTree axes = schedule::replay(domain, name);
  const int rank = static_cast<int>(domain.loop.size());
  int thread = -1;
  int64_t last = 0;
  for (int l = 0; l < rank; ++l) {
    const auto& [extent, parallel] = domain.loop[l];
    const int64_t apart = axes.scanned[axes.loop[l]];
    if (apart == 0 || extent == 1) continue;
    JF_REQUIRE(last == 0 || apart < last, "[lower] ", name, " is scanned along loop axis ", l,
               ", whose parts are further apart than those of a loop around it; reorder the axes as split made them");
    last = apart;
    if (is_thread(parallel)) {
      JF_REQUIRE(thread < 0, "[lower] ", name, " is scanned along loop axes ", thread, " and ", l,
                 ", both threads; use one thread axis along what is scanned");
      thread = l;
    } else {
      JF_REQUIRE(is_serial(parallel) || parallel == Parallel::kVector, "[lower] ", name, " is scanned along loop axis ",
                 l, ", which is ", schedule::name(parallel), ": what runs apart cannot be scanned in order");
    }
  }
  if (thread < 0) return;
  JF_REQUIRE(domain.memory == schedule::Memory::kRegister, "[lower] ", name,
             " is scanned by threads, complete in their registers; share a copy of it");
  JF_REQUIRE(domain.inline_at <= thread, "[lower] ", name, " is inlined at ", domain.inline_at,
             ", inside of loop axis ", thread, ", whose threads scan it together; inline it at ", thread, " or less");
  for (int l = domain.inline_at; l < rank; ++l) {
    const auto& [extent, parallel] = domain.loop[l];
    const int node = axes.loop[l];
    const bool beside = axes.scanned[node] == 0 && !axes.inserted[node] && extent > 1;
    JF_REQUIRE(!beside || !is_serial(parallel), "[lower] ", name, " is scanned by threads inside of loop axis ", l,
               ", which is ", schedule::name(parallel), "; inline it at ", l + 1, " or more");
    JF_REQUIRE(!beside || parallel != Parallel::kVector || domain.loop[thread].parallel == Parallel::kThreadY,
               "[lower] ", name, " is scanned by the threads of axis ", thread,
               ", but its lanes lie along another one; ", "use thread_y");
    JF_REQUIRE(
        axes.scanned[node] == 0 || parallel != Parallel::kVector || domain.loop[thread].parallel == Parallel::kThread,
        "[lower] ", name, " is scanned along loop axis ", thread, " and along its lanes; use thread there");
  }
}

void check_scans_without_lanes(const ir::Fusion& segment, const schedule::Schedule& schedule) {
  for (const ir::Op& op : segment.ops) {
    const Domain& domain = schedule.domains[op.output];
    const std::string& name = segment.values[op.output].name;
    if (domain.loop.empty() || schedule::scan_position(domain, name) < 0) continue;
    const AxisTree axes = schedule::replay(domain, name);
    const int last = axes.loop.back();
    const bool beside = axes.scanned[last] == 0 && !axes.inserted[last] && axes.extents[last] > 1;
    JF_REQUIRE(!beside || domain.loop.back().parallel != Parallel::kVector, "[lower] ", name,
               " is scanned by threads, ", axes.extents[last],
               " columns in lanes beside each other, but something in its kernel is not in step ",
               "with lanes; split them off an axis that ", axes.extents[last], " divides, or make that axis thread");
  }
}

}  // namespace jf::lower
