// What one custom call asks for: a fusion and, where a person scheduled it, its schedule. As text the one stands before
// the other, each as its own printer writes it.
#pragma once

#include <optional>
#include <string_view>

#include "base/target.h"
#include "host/program.h"
#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::host {

struct Request {
  ir::Fusion fusion;
  std::optional<schedule::Schedule> schedule;
};

Request parse_request(std::string_view program);

// With a schedule the whole fusion is one kernel with exactly that schedule; without one the plan decides. Pure: equal
// arguments give equal programs, in every process.
Program build(const Request& request, const Target& target);

}  // namespace jf::host
