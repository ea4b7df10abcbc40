#include "base/parameters.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace jf {
namespace {

bool is_number(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Parameter parse_parameter(std::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  if (int64_t number = 0; is_number(text, number)) return number;
  if (text.empty() || text.front() != '[') return std::string(text);
  JF_REQUIRE(text.size() >= 2 && text.back() == ']', "[parameters] expected a list like [1,2], got '", text, "'");
  std::vector<int64_t> list;
  for (text = text.substr(1, text.size() - 2); !text.empty();) {
    const size_t end = std::min(text.find(','), text.size());
    int64_t number = 0;
    JF_REQUIRE(is_number(text.substr(0, end), number), "[parameters] expected integers in a list, got '", text, "'");
    list.push_back(number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return list;
}

}  // namespace

std::string print(const Parameter& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return cat(*number);
  if (const auto* word = std::get_if<std::string>(&value)) return *word;
  std::string list;
  for (const int64_t number : std::get<std::vector<int64_t>>(value)) list += cat(list.empty() ? "" : ",", number);
  return cat("[", list, "]");
}

std::string print(const Parameters& parameters) {
  std::string text;
  for (const auto& [name, value] : parameters) text += cat(text.empty() ? "" : " ", name, "=", print(value));
  return text;
}

Parameters parse_parameters(std::string_view text) {
  Parameters parameters;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    JF_REQUIRE(equals != word.npos && equals > 0, "[parameters] expected name=value, got '", word, "'");
    parameters[std::string(word.substr(0, equals))] = parse_parameter(word.substr(equals + 1));
  }
  return parameters;
}

}  // namespace jf
