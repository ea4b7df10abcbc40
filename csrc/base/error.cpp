#include "base/error.h"

namespace jf {

InternalError::InternalError(const char* file, int line, const char* condition, const std::string& message)
    : std::logic_error(cat("jax_fuser bug at ", file, ":", line, ": ", condition, " failed: ", message,
                           "\nPlease report it with the text above.")) {}

}  // namespace jf
