#include "codegen/names.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"

namespace jf::codegen {
namespace {

// C++ keywords and the words of the generated text, with a space before and after each.
constexpr std::string_view kReserved =
    " alignas alignof and and_eq asm auto bitand bitor blockIdx bool break buffers case catch char char16_t"
    " char32_t char8_t class cluster co_await co_return co_yield compl concept const const_cast consteval constexpr"
    " constinit continue decltype default delete do double dynamic_cast else enum explicit export extern false"
    " float for friend goto if inline int jf long mutable namespace new noexcept not not_eq nullptr on operator or"
    " or_eq pred private protected public register reinterpret_cast requires return scratch shared short signed"
    " sizeof static static_assert static_cast struct switch task template this threadIdx thread_local throw true"
    " try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq ";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// i0, v1 and f32, s8, u64 are the printer's own; macros are in capitals and longer than a letter.
bool is_plain(std::string_view name) {
  if (name.empty() || !is_letter(name[0]) || name.find("__") != name.npos) return false;
  if (!std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c) || c == '_'; }))
    return false;
  if (kReserved.find(cat(" ", name, " ")) != kReserved.npos) return false;
  if (name.size() > 1 && std::none_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; }))
    return false;
  const bool numbered = name.size() > 1 && std::all_of(name.begin() + 1, name.end(), is_digit);
  return !numbered || std::string_view("ivsuf").find(name[0]) == std::string_view::npos;
}

template <class T>
std::string shortest(T value) {
  if (std::isnan(value)) return "jf::kNaN";
  if (std::isinf(value)) return value < 0 ? "-jf::kInfinity" : "jf::kInfinity";
  char digits[32];
  std::string text(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text + (sizeof(T) == sizeof(float) ? "f" : "");
}

}  // namespace

std::vector<std::string> safe_names(const std::vector<std::string>& names) {
  std::set<std::string> taken;
  std::vector<std::string> result;
  for (const std::string& given : names) {
    std::string name = given;
    if (!is_plain(name)) {
      std::replace_if(name.begin(), name.end(), [](char c) { return !is_letter(c) && !is_digit(c); }, '_');
      name = cat("buffer", result.size(), "_", name);
      name.erase(std::unique(name.begin(), name.end(), [](char a, char b) { return a == '_' && b == '_'; }),
                 name.end());
    }
    const std::string plain = name;  // for one, a result and the array that holds it
    for (int i = 2; !taken.insert(name).second; ++i) name = cat(plain, "_", i);
    result.push_back(name);
  }
  return result;
}

std::string safe_comment(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string result(text.substr(0, kLongest));
  // A backslash at the end would join the next line; "??/" is one too in old modes.
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~' || c == '\\' || c == '?'; }, '.');
  return result;
}

std::string literal(const ir::Constant& constant, DType dtype) {
  if (is_float(dtype)) {
    const double* value = std::get_if<double>(&constant.value);
    JF_CHECK(value, "a constant of dtype ", name(dtype), " holds an integer");
    return dtype == DType::kF64 ? shortest(*value) : shortest(static_cast<float>(*value));
  }
  const int64_t* value = std::get_if<int64_t>(&constant.value);
  JF_CHECK(value, "a constant of dtype ", name(dtype), " holds a float");
  if (dtype == DType::kPred) return *value ? "true" : "false";
  if (dtype == DType::kU64) return cat(static_cast<uint64_t>(*value), "UL");
  if (*value == INT64_MIN) return "-9223372036854775807L - 1";
  return cat(*value);
}

}  // namespace jf::codegen
