#include "base/error.h"

namespace jf {
namespace {

constexpr std::string_view kAsk = "\nPlease report it with the text above.";

std::string with_program(std::string_view text, std::string_view program) {
  if (text.ends_with(kAsk)) text.remove_suffix(kAsk.size());
  return cat(text, "\nPlease report it; paste this into the report, the program:\n", program);
}

}  // namespace

InternalError::InternalError(const char* file, int line, const char* condition, const std::string& message)
    : std::logic_error(cat("jax_fuser bug at ", file, ":", line, ": ", condition, " failed: ", message, kAsk)) {}

InternalError::InternalError(const InternalError& error, std::string_view program)
    : std::logic_error(error.has_program_ ? error.what() : with_program(error.what(), program)), has_program_(true) {}

}  // namespace jf
