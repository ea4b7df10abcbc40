#include "host/by_strategy.h"

#include "base/error.h"
#include "host/report.h"
#include "ir/text.h"
#include "lower/lower.h"

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

}  // namespace jf::host
