// Two kinds of error. A UserError is the caller's to mend: it names the function, what was expected, what came and what
// to do next, and carries no file or line. An InternalError is ours: it carries file, line and condition for a bug
// report.
#pragma once

#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace jf {

class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InternalError : public std::logic_error {
 public:
  InternalError(const char* file, int line, const char* condition, const std::string& message);
  // The same with the program that it was about, which makes a report complete; an error keeps its first program.
  InternalError(const InternalError& error, std::string_view program);

 private:
  bool has_program_ = false;
};

// Appends text, a character, or a number in its shortest form. Streams are avoided: their locales break where two C++
// runtimes meet in one process.
template <class T>
void append(std::string& out, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out += std::string_view(value);
  } else if constexpr (std::is_same_v<T, char>) {
    out += value;
  } else if constexpr (std::is_same_v<T, bool>) {
    out += value ? '1' : '0';
  } else {
    static_assert(std::is_arithmetic_v<T>, "text, characters and numbers can be appended");
    char digits[64];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
}

// Joins its arguments, so that error texts are built in one expression.
template <class... Args>
std::string cat(const Args&... args) {
  std::string out;
  (append(out, args), ...);
  return out;
}

}  // namespace jf

// The caller's mistake: JF_REQUIRE(n > 0, "[split] factor must be positive, got ", n)
#define JF_REQUIRE(condition, ...)                                   \
  do {                                                               \
    if (!(condition)) throw ::jf::UserError(::jf::cat(__VA_ARGS__)); \
  } while (false)

// Our mistake: JF_CHECK(id < size, "value ", id, " of ", size)
#define JF_CHECK(condition, ...)                                                                         \
  do {                                                                                                   \
    if (!(condition)) throw ::jf::InternalError(__FILE__, __LINE__, #condition, ::jf::cat(__VA_ARGS__)); \
  } while (false)
