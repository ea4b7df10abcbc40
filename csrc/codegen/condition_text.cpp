#include "codegen/condition_text.h"

#include <optional>

#include "base/error.h"

namespace jf::codegen {
namespace {

using loops::Below;
using loops::Condition;

// The first iterations of an unrolled loop, in which an index is below the bound whatever the other variables are: a
// compiler does not know of how many threads there are.
std::string holds_anyway(const Below& below, const Variables& variables) {
  if (below.variable >= 0) return "";
  for (const auto& [id, variable] : variables) {
    if (!variable.unrolled || !depends(below.index, id)) continue;
    Variables first = variables;
    const auto holds = [&, id = id](int64_t count) {
      first.at(id).last = count - 1;
      const std::optional<int64_t> most = largest(below.index, first);
      return most && *most < below.bound;
    };
    int64_t count = 0;
    for (int64_t end = *variable.last + 1; count + 1 < end;) {
      const int64_t middle = count + (end - count) / 2;
      (holds(middle) ? count : end) = middle;
    }
    if (count > 0) return cat(variable.name, " < ", count);
  }
  return "";
}

}  // namespace

std::string condition_text(const Condition& below, const Variables& variables, bool alone) {
  std::string result;
  for (const Below& b : below) {
    const std::string bound = b.variable < 0 ? cat(b.bound) : variables.at(b.variable).name;
    const std::string text = cat(index_text(b.index, variables), " < ", bound), sure = holds_anyway(b, variables);
    const std::string both = cat(sure, sure.empty() ? "" : " || ", text);
    const bool brackets = !sure.empty() && (below.size() > 1 || !alone);
    result += cat(result.empty() ? "" : " && ", brackets ? cat("(", both, ")") : both);
  }
  return result;
}

std::string or_first_text(const Condition& below, const std::string& at, const Variables& variables) {
  std::string always;
  bool known = true;
  for (const Below& b : below) {
    const std::string sure = holds_anyway(b, variables);
    known = known && !sure.empty();
    always += cat(always.empty() ? "" : " && ", sure);
  }
  const std::string masked = cat("jf::or_first(", condition_text(below, variables), ", ", at, ")");
  return known ? cat("(", always, " ? ", at, " : ", masked, ")") : masked;
}

std::string limits_text(const Condition& limits, const Variables& variables) {
  std::string result;
  for (const Below& limit : limits) {
    const std::string bound = limit.variable < 0 ? cat(limit.bound) : variables.at(limit.variable).name;
    const std::string own =
        loops::is_zero(limit.index) ? bound : cat(bound, " - (", index_text(limit.index, variables), ")");
    result = result.empty() ? own : cat("jf::least(", result, ", ", own, ")");
  }
  return result;
}

std::string ends_text(const loops::Vector& vector, int width, const Variables& variables) {
  const int64_t limit = vector.limits.front().bound;
  const auto at_end = [&](bool last) {
    loops::IndexPtr index = vector.base;
    for (const auto& [id, known] : variables) {
      if (known.unrolled || !depends(index, id)) continue;
      index = replace(index, id, loops::constant(last ? known.last.value_or(limit) : 0));
    }
    return index_text(index, variables);
  };
  return cat(", ", at_end(false), " == 0, ", at_end(true), " > ", limit - width);
}

}  // namespace jf::codegen
