// What one custom call asks for: a fusion and, where a person scheduled it, its schedule, or which hand-written kernel
// computes it, or how its result is stored, or parameters that were measured. As text the one stands before the other,
// each as its own printer writes it; the kernel is a line (written.h), and so is the result (quantized_product.h).
#pragma once

#include <optional>
#include <string_view>

#include "base/target.h"
#include "grouped/output_format.h"
#include "host/program.h"
#include "host/tuning.h"
#include "host/written.h"
#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::host {

struct Request {
  ir::Fusion fusion;
  std::optional<schedule::Schedule> schedule;
  std::optional<Written> written = {};
  grouped::OutputFormat quantized = grouped::OutputFormat::kNone;
  Tuning tuning = {};
};

Request parse_request(std::string_view program);

// With a schedule the whole fusion is one kernel with exactly that schedule, or it is the hand-written one; else the
// plan decides. Pure: equal arguments give equal programs, in every process. Throws UserError for a target without the
// hand-written kernel, or without one that quantizes its result.
Program build(const Request& request, const Target& target);

}  // namespace jf::host
