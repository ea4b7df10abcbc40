// The text form of a schedule.
#include <array>
#include <cctype>
#include <charconv>
#include <map>

#include "base/error.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::schedule {
namespace {

constexpr std::array<std::string_view, 6> kParallelNames = {"serial", "unroll", "vector", "task", "block", "thread"};

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += cat(text.empty() ? "" : separator, part);
  return text;
}

struct TransformPrinter {
  const ir::Fusion& fusion;
  std::string operator()(const Split& s) const {
    return cat(" split(", s.axis, s.inner ? "," : ",outer ", s.factor, ")");
  }
  std::string operator()(const Merge& m) const { return cat(" merge(", m.axis, ")"); }
  std::string operator()(const Reorder& r) const {
    std::vector<std::string> order;
    for (int axis : r.order) order.push_back(cat(axis));
    return cat(" reorder(", join(order, ","), ")");
  }
  std::string operator()(const Insert& i) const {
    return cat(" insert(", i.axis, ",", fusion.values[i.like].name, ".", i.like_axis, ")");
  }
  std::string operator()(const Drop& d) const { return cat(" drop(", d.axis, ")"); }
};

class Parser {
 public:
  Parser(const ir::Fusion& fusion, std::string_view text) : fusion_(fusion), text_(text) {
    for (size_t i = 0; i < fusion.values.size(); ++i) ids_[fusion.values[i].name] = static_cast<ValueId>(i);
  }

  Schedule run() {
    Schedule schedule = unscheduled(fusion_);
    expect("schedule");
    expect("{");
    while (!accept("}")) domain(schedule);
    require(at_ == text_.size(), "the end of the text");
    verify(fusion_, schedule);
    return schedule;
  }

 private:
  void domain(Schedule& schedule) {
    Domain& domain = schedule.domains[value()];
    expect("[");
    while (!accept("]")) ++at_, require(at_ < text_.size(), "']'");  // the shape is the fusion's
    expect(":");
    while (!accept("->")) domain.transforms.push_back(transform());
    expect("[");
    domain.loop.clear();
    while (!accept("]")) {
      LoopAxis axis{integer()};
      for (size_t i = 0; i < kParallelNames.size(); ++i) {
        if (accept(kParallelNames[i])) axis.parallel = static_cast<Parallel>(i);
      }
      domain.loop.push_back(axis);
      if (!accept(",")) {
        expect("]");
        break;
      }
    }
    if (accept("inline")) domain.inline_at = static_cast<int>(integer());
  }

  Transform transform() {
    constexpr std::string_view kExpected = "split, merge, reorder, insert, drop or '->'";
    const size_t begin = at_;
    const std::string name = word(kExpected);
    const bool known = name == "split" || name == "merge" || name == "reorder" || name == "insert" || name == "drop";
    if (!known) at_ = begin;
    require(known, kExpected);
    expect("(");
    Transform result = arguments(name);
    expect(")");
    return result;
  }
  Transform arguments(const std::string& name) {
    if (name == "reorder") {
      Reorder reorder;
      do reorder.order.push_back(static_cast<int>(integer()));
      while (accept(","));
      return reorder;
    }
    const int axis = static_cast<int>(integer());
    if (name == "merge") return Merge{axis};
    if (name == "drop") return Drop{axis};
    expect(",");
    if (name == "split") {
      const bool outer = accept("outer");
      return Split{axis, integer(), !outer};
    }
    Insert insert{axis, value(), 0, 0};
    expect(".");
    insert.like_axis = static_cast<int>(integer());
    const std::vector<ir::Axis>& axes = fusion_.values[insert.like].axes;
    require(insert.like_axis >= 0 && insert.like_axis < static_cast<int>(axes.size()), "an axis of that value");
    insert.extent = axes[insert.like_axis].extent;
    return insert;
  }

  void require(bool condition, std::string_view expected) const {
    if (condition) return;
    int line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    const std::string got = at_ < text_.size() ? cat("'", text_.substr(at_, 20), "'") : "the end";
    throw UserError(cat("[parse] line ", line, ": expected ", expected, ", got ", got));
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool accept(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    skip();
    return true;
  }
  void expect(std::string_view token) {
    const bool found = accept(token);
    require(found, cat("'", token, "'"));
  }
  std::string word(std::string_view expected) {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    require(at_ > begin, expected);
    return std::string(text_.substr(begin, at_ - begin));
  }
  int64_t integer() {
    skip();
    int64_t number = 0;
    const auto [end, code] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    require(code == std::errc() && number >= 0, "an integer that is not negative");
    at_ = end - text_.data();
    return number;
  }
  ValueId value() {
    const size_t begin = at_;
    const auto found = ids_.find(word("the name of a value"));
    if (found == ids_.end()) at_ = begin;
    require(found != ids_.end(), cat("a value of ", fusion_.name));
    return found->second;
  }

  const ir::Fusion& fusion_;
  std::string_view text_;
  size_t at_ = 0;
  std::map<std::string, ValueId> ids_;
};

}  // namespace

std::string_view name(Parallel parallel) { return kParallelNames[static_cast<size_t>(parallel)]; }

std::string print(const ir::Fusion& fusion, const Schedule& schedule) {
  const Schedule start = unscheduled(fusion);
  std::string text = "schedule {\n";
  for (size_t id = 0; id < schedule.domains.size(); ++id) {
    const Domain& domain = schedule.domains[id];
    if (domain == start.domains[id]) continue;
    std::vector<std::string> shape, loops;
    for (int64_t extent : domain.logical) shape.push_back(cat(extent));
    for (const auto& [extent, parallel] : domain.loop) {
      loops.push_back(parallel == Parallel::kSerial ? cat(extent) : cat(extent, " ", name(parallel)));
    }
    text += cat("  ", fusion.values[id].name, "[", join(shape, ","), "]:");
    for (const Transform& transform : domain.transforms) text += std::visit(TransformPrinter{fusion}, transform);
    text += cat(" -> [", join(loops, ", "), "]");
    if (domain.inline_at > 0) text += cat(" inline ", domain.inline_at);
    text += "\n";
  }
  return text + "}\n";
}

Schedule parse(const ir::Fusion& fusion, std::string_view text) { return Parser(fusion, text).run(); }

}  // namespace jf::schedule
