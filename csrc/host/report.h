// Errors that are ours leave the compiler with the text of the program, so that a report can be acted on.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "base/error.h"

namespace jf::host {

// Calls f; what it throws, other than the caller's mistakes, becomes an InternalError with the program.
template <class F>
decltype(auto) reported(std::string_view program, F&& f) {
  try {
    return f();
  } catch (const UserError&) {
    throw;
  } catch (const InternalError& error) {
    throw InternalError(error, program);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw InternalError(InternalError(__FILE__, __LINE__, "no exception of the C++ library", error.what()), program);
  }
}

}  // namespace jf::host
