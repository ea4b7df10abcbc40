// What bulk axes and stages may be.

#include "base/error.h"
#include "base/lists.h"
#include "base/target.h"
#include "lower/allocation.h"
#include "lower/bulk.h"
#include "schedule/axes.h"

namespace jf::lower {
namespace {

using ir::Fusion;
using schedule::Domain;
using schedule::Parallel;

// An input goes to shared memory, or what is shared to an output.
void check_copy(const Fusion& segment, const schedule::Schedule& schedule, const ir::Op& op) {
  const Domain& domain = schedule.domains[op.output];
  const std::string& value = segment.values[op.output].name;
  const bool copies = op.kind == ir::OpKind::kCopy, loads = copies && contains(segment.inputs, op.inputs[0]);
  const bool stores = copies && !loads && contains(segment.outputs, op.output);
  JF_REQUIRE(loads || stores, "[lower] ", value,
             " has bulk axes, but is neither the copy of an input nor an output that is a copy; make one by "
             "cache_after or cache_before");
  if (loads) {
    JF_REQUIRE(!contains(segment.outputs, op.output), "[lower] ", value,
               " has bulk axes and is an output, which threads store from their registers; store another copy");
    JF_REQUIRE(domain.memory == schedule::Memory::kShared, "[lower] ", value,
               " has bulk axes, which copy to shared memory; call set_memory(shared)");
  } else {
    const std::string& from = segment.values[op.inputs[0]].name;
    const Domain& source = schedule.domains[op.inputs[0]];
    JF_REQUIRE(source.memory == schedule::Memory::kShared && !schedule::is_bulk(source), "[lower] ", value,
               " has bulk axes, which copy from shared memory, where no thread writes ", from,
               "; call set_memory(shared) for that");
    JF_REQUIRE(domain.memory == schedule::Memory::kRegister, "[lower] ", value,
               " has bulk axes and is an output, which is in global memory; call set_memory(register)");
    for (const ir::Op& user : segment.ops) {
      JF_REQUIRE(!contains(user.inputs, op.output), "[lower] ", value, " has bulk axes, so that no thread has it for ",
                 segment.values[user.output].name, "; let that read ", from, ": see cache_fork");
    }
  }
  const int bulk = schedule::first_bulk(domain);
  for (int l = 0; l < bulk; ++l) {
    const Parallel parallel = domain.loop[l].parallel;
    const bool serial = is_serial(parallel), together = serial || is_block(parallel);
    JF_REQUIRE(together, "[lower] loop axis ", l, " of ", value, " is ", name(parallel),
               ", but one thread begins a bulk copy for the whole block; make the axis serial or bulk");
    JF_REQUIRE(stores || l < domain.inline_at || serial || parallel == Parallel::kCluster, "[lower] ", value,
               " is not inlined in its ", name(parallel), " axis ", l, "; ",
               how_to_inline(segment, schedule, op.output, l));
  }
  JF_REQUIRE(domain.inline_at <= bulk, "[lower] ", value, " is inlined at ", domain.inline_at,
             " loop axes, inside of its bulk axis ", bulk);
}

}  // namespace

void check_bulk(const Fusion& segment, const schedule::Schedule& schedule, const Target& target) {
  std::vector<bool> computed(segment.values.size(), false);
  for (const ir::Op& op : segment.ops) {
    computed[op.output] = true;
    const Domain& domain = schedule.domains[op.output];
    const std::string& value = segment.values[op.output].name;
    const bool bulk = schedule::is_bulk(domain);
    JF_REQUIRE(bulk || domain.stages == 1, "[lower] ", value, " has ", domain.stages,
               " stages, but no bulk axes, whose copies could fill them ahead; parallelize(bulk) its innermost axes");
    if (!bulk) continue;
    JF_REQUIRE(has_clusters(target), "[lower] ", value,
               " has bulk axes, which need a CUDA device of compute capability 9.0, but the target is '", print(target),
               "'; load it by threads");
    check_copy(segment, schedule, op);
    if (domain.stages == 1) continue;
    const Parallel around = domain.inline_at > 0 ? domain.loop[domain.inline_at - 1].parallel : Parallel::kBlock;
    JF_REQUIRE(is_serial(around), "[lower] ", value, " has ", domain.stages, " stages, but ",
               domain.inline_at > 0 ? cat("its innermost inlined axis ", domain.inline_at - 1, " is ", name(around))
                                    : "is not inlined",
               "; inline it in the serial loop whose iterations should use them in turn");
  }
  for (ir::ValueId id : segment.outputs) {
    JF_REQUIRE(computed[id] || !schedule::is_bulk(schedule.domains[id]), "[lower] ", segment.values[id].name,
               " is an input and an output; bulk axes need a copy of it");
  }
}

}  // namespace jf::lower
