#include "host/by_strategy.h"

#include "base/error.h"
#include "host/report.h"
#include "ir/results.h"
#include "ir/text.h"
#include "lower/lower.h"
#include "plan/plan.h"
#include "schedule/edit.h"

namespace jf::host {

plan::StrategyKernel schedule_by(const ir::Fusion& fusion, std::string_view strategy, const Target& target,
                                 const Parameters& given) {
  return reported(ir::print(fusion), [&] {
    plan::StrategyKernel kernel = plan::schedule_by(fusion, strategy, target, given);
    lower::lower(kernel.fusion, kernel.schedule, target);
    return kernel;
  });
}

std::string why_not(const ir::Fusion& fusion, std::string_view strategy, const Target& target) {
  try {
    schedule_by(fusion, strategy, target, {});
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

std::vector<Scheduled> propose(const ir::Fusion& fusion, const Target& target) {
  std::vector<Scheduled> kernels = build(fusion, target).scheduled;
  if (kernels.size() == 1) {
    const plan::Plan plan = plan::plan(ir::with_parts_joined(fusion), target);
    auto& [kernel, schedule] = kernels.front();
    if (plan.segments.size() == 1 && plan.segments.front().inputs.size() == kernel.inputs.size()) {
      kernel = plan::in_order(plan.fusion, plan.segments.front(), std::move(kernel));
      for (size_t unread = schedule.domains.size(); unread < kernel.values.size(); ++unread) {
        schedule.domains.push_back(schedule::unscheduled(kernel).domains[unread]);
      }
    }
  }
  for (Scheduled& kernel : kernels) schedule::number_as_text(kernel.fusion, kernel.schedule);
  return kernels;
}

}  // namespace jf::host
