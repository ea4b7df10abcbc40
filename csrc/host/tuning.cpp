#include "host/tuning.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/target.h"
#include "grouped/cuda/grouped_cuda.h"
#include "host/report.h"
#include "host/request.h"

namespace jf::host {
namespace {

constexpr int64_t kMostThreads = 1024;

// Counts that may be doubled and halved, and pairs of them whose product says how much a kernel keeps.
constexpr const char* kCounts[] = {"threads", "threads_y", "unroll", "tile", "chunk", "rows", "columns", "tasks"};
constexpr std::pair<const char*, const char*> kPairs[] = {
    {"threads", "unroll"}, {"threads", "threads_y"}, {"columns", "rows"}, {"rows", "unroll"}, {"cluster", "unroll"}};
// Two that grow or shrink together, and those that are so or not.
constexpr std::pair<const char*, const char*> kTogether[] = {{"tile", "threads"}};
constexpr const char* kSwitches[] = {"keep_columns", "keep_wide"};

const int64_t* number(const Parameters& fields, const char* name) {
  const auto found = fields.find(name);
  return found == fields.end() ? nullptr : std::get_if<int64_t>(&found->second);
}

// One step away from `fields`.
std::vector<Parameters> neighbours(const Parameters& fields) {
  std::vector<Parameters> result;
  const auto add = [&](std::initializer_list<std::pair<const char*, int64_t>> changes) {
    Parameters changed = fields;
    for (const auto& [name, value] : changes) {
      if (value < 1 || value > kMostThreads) return;
      changed[name] = value;
    }
    result.push_back(std::move(changed));
  };
  for (const char* name : kCounts) {
    const int64_t* value = number(fields, name);
    if (!value) continue;
    add({{name, *value * 2}});
    if (*value % 2 == 0) add({{name, *value / 2}});
  }
  for (const auto& [one, other] : kPairs) {
    const int64_t *a = number(fields, one), *b = number(fields, other);
    if (!a || !b) continue;
    if (*b % 2 == 0) add({{one, *a * 2}, {other, *b / 2}});
    if (*a % 2 == 0) add({{one, *a / 2}, {other, *b * 2}});
  }
  for (const auto& [one, other] : kTogether) {
    const int64_t *a = number(fields, one), *b = number(fields, other);
    if (!a || !b) continue;
    add({{one, *a * 2}, {other, *b * 2}});
    if (*a % 2 == 0 && *b % 2 == 0) add({{one, *a / 2}, {other, *b / 2}});
  }
  for (const char* name : kSwitches) {
    const auto found = fields.find(name);
    if (found == fields.end()) continue;
    result.push_back(fields);
    result.back()[name] = !std::get<bool>(found->second);
  }
  if (const int64_t* stages = number(fields, "stages"); stages && *stages > 1) {
    add({{"stages", *stages + 1}});
    if (*stages > 2) add({{"stages", *stages - 1}});
  }
  return result;
}

}  // namespace

const Parameters& Tuning::of(const std::string& kernel) const {
  static const Parameters none;
  const auto found = kernels.find(kernel);
  return found == kernels.end() ? none : found->second;
}

Tuning parse_tuning(std::string_view text) {
  constexpr std::string_view kBegin = "tuned {\n", kEnd = "}\n";
  JF_REQUIRE(text.starts_with(kBegin) && text.ends_with(kEnd),
             "[tuned] expected 'tuned {', a line for each kernel and ", "'}', got\n", text);
  text = text.substr(kBegin.size(), text.size() - kBegin.size() - kEnd.size());
  Tuning tuning;
  while (!text.empty()) {
    const size_t end = text.find('\n'), colon = text.find(": ");
    JF_REQUIRE(end != text.npos && text.starts_with("  ") && colon < end,
               "[tuned] expected '  kernel: name=value', got ", text.substr(0, end));
    tuning.kernels[std::string(text.substr(2, colon - 2))] = parse_parameters(text.substr(colon + 2, end - colon - 2));
    text.remove_prefix(end + 1);
  }
  return tuning;
}

std::vector<Alternatives> alternatives(const std::string& program, const std::string& target_text) {
  return reported(program, [&] {
    const Target target = parse_target(target_text);
    const Request request = parse_request(program);
    const bool quantized = request.quantized != grouped::OutputFormat::kNone;
    if (request.schedule || request.written || quantized) return std::vector<Alternatives>{};
    const Program built = build(request, target);
    std::vector<Alternatives> result;
    const auto add = [&](const std::string& kernel, const Parameters& now, const std::vector<Parameters>& others) {
      if (now.empty() || others.empty()) return;
      Alternatives found{kernel, jf::print(now), {}};
      for (const Parameters& other : others) found.others.push_back(jf::print(other));
      result.push_back(std::move(found));
    };
    for (const KernelFacts& facts : built.facts) add(facts.name, facts.fields, neighbours(facts.fields));
    for (const Step& step : built.steps) {
      const auto* grouped = std::get_if<GroupedStep>(&step);
      if (!grouped || target.platform != Platform::kCuda) continue;
      const grouped::RowEpilogue* epilogue = grouped->epilogue ? &*grouped->epilogue : nullptr;
      add(grouped->name, grouped::fields_of(grouped->problem, target, epilogue, grouped->parameters),
          grouped::alternatives(grouped->problem, target, epilogue));
    }
    return result;
  });
}

}  // namespace jf::host
