// The text form of a schedule.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <map>

#include "base/error.h"
#include "schedule/axes.h"
#include "schedule/schedule.h"

namespace jf::schedule {
namespace {

constexpr std::array<std::string_view, kParallelTypes> kParallelNames = {
    "serial", "unroll", "vector", "task", "block", "block_y", "cluster", "thread", "thread_y", "bulk"};

template <class T>
std::string join(const std::vector<T>& parts, const char* separator) {
  std::string text;
  for (const T& part : parts) text += cat(text.empty() ? "" : separator, part);
  return text;
}

struct TransformPrinter {
  const ir::Fusion& fusion;
  std::string operator()(const Split& s) const {
    return cat(" split(", s.axis, s.inner ? "," : ",outer ", s.factor, ")");
  }
  std::string operator()(const Merge& m) const { return cat(" merge(", m.axis, ")"); }
  std::string operator()(const Reorder& r) const { return cat(" reorder(", join(r.order, ","), ")"); }
  std::string operator()(const Insert& i) const {
    return cat(" insert(", i.axis, ",", fusion.values[i.like].name, ".", i.like_axis, ")");
  }
  std::string operator()(const Drop& d) const { return cat(" drop(", d.axis, ")"); }
  std::string operator()(const Swizzle& s) const { return cat(" swizzle(", s.x, ",", s.y, ")"); }
};

class Parser {
 public:
  Parser(const ir::Fusion& fusion, std::string_view text)
      : fusion_(fusion), text_(text), schedule_(unscheduled(fusion)), listed_(fusion.values.size(), false) {
    for (size_t i = 0; i < fusion.values.size(); ++i) ids_[fusion.values[i].name] = static_cast<ValueId>(i);
  }

  Schedule run() {
    expect("schedule");
    expect("{");
    while (!accept("}")) domain();
    require(at_ == text_.size(), "the end of the text");
    verify(fusion_, schedule_);
    return std::move(schedule_);
  }

 private:
  void domain() {
    const size_t begin = at_;
    const ValueId id = value();
    if (listed_[id]) at_ = begin;
    require(!listed_[id], "a value that is not listed above");
    listed_[id] = true;
    Domain& domain = schedule_.domains[id];
    const size_t shape_begin = at_;
    const std::vector<int64_t> shape = list<int64_t>("[", "]", [&] { return integer(); });
    if (shape != domain.logical) at_ = shape_begin;
    require(shape == domain.logical, cat("the shape [", join(domain.logical, ","), "]"));
    expect(":");
    domain.transforms.clear();
    while (!accept("->")) domain.transforms.push_back(transform());
    domain.loop = list<LoopAxis>("[", "]", [&] { return loop_axis(); });
    if (accept_word("inline")) domain.inline_at = axis();
    if (accept_word("shared")) {
      domain.memory = Memory::kShared;
      if (accept("(")) {
        do domain.storage.push_back(axis());
        while (accept(","));
        if (accept_word("pad")) domain.pad = integer();
        expect(")");
      }
      if (accept_word("circular")) {
        domain.stages = axis();
        const bool prefetch = accept_word("prefetch");
        require(prefetch, "'prefetch'");
        domain.prefetch = axis();
      }
    }
  }

  LoopAxis loop_axis() {
    LoopAxis axis{integer()};
    skip();
    if (at_ == text_.size() || !is_word(text_[at_])) return axis;
    const size_t begin = at_;
    const auto found = std::find(kParallelNames.begin(), kParallelNames.end(), word(""));
    if (found == kParallelNames.end()) at_ = begin;
    require(found != kParallelNames.end(),
            cat("one of ", join(std::vector(kParallelNames.begin(), kParallelNames.end()), ", ")));
    axis.parallel = static_cast<Parallel>(found - kParallelNames.begin());
    return axis;
  }

  Transform transform() {
    constexpr std::string_view kExpected = "split, merge, reorder, swizzle, insert, drop or '->'";
    const size_t begin = at_;
    const std::string name = word(kExpected);
    if (name == "reorder") return Reorder{list<int>("(", ")", [&] { return axis(); })};
    const bool known = name == "split" || name == "merge" || name == "swizzle" || name == "insert" || name == "drop";
    if (!known) at_ = begin;
    require(known, kExpected);
    expect("(");
    Transform result = arguments(name);
    expect(")");
    return result;
  }
  Transform arguments(const std::string& name) {
    const int first = axis();
    if (name == "merge") return Merge{first};
    if (name == "drop") return Drop{first};
    expect(",");
    if (name == "swizzle") return Swizzle{first, axis()};
    if (name == "split") {
      const bool outer = accept("outer");
      return Split{first, integer(), !outer};
    }
    Insert insert{first, value(), 0, 0};
    expect(".");
    insert.like_axis = axis();
    const std::vector<int64_t>& roots = schedule_.domains[insert.like].logical;
    require(insert.like_axis < static_cast<int>(roots.size()), "an axis of that value");
    insert.extent = roots[insert.like_axis];
    return insert;
  }

  template <class T, class Item>
  std::vector<T> list(std::string_view open, std::string_view close, Item item) {
    std::vector<T> items;
    expect(open);
    if (accept(close)) return items;
    do items.push_back(item());
    while (accept(","));
    expect(close);
    return items;
  }
  void require(bool condition, std::string_view expected) const {
    if (condition) return;
    int line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    const std::string got = at_ < text_.size() ? cat("'", text_.substr(at_, 20), "'") : "the end";
    throw UserError(cat("[parse] line ", line, ": expected ", expected, ", got ", got));
  }
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
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
  // A word before '[' is the next value instead, whatever its name.
  bool accept_word(std::string_view keyword) {
    const size_t begin = at_;
    skip();
    if (at_ < text_.size() && is_word(text_[at_]) && word("") == keyword) {
      skip();
      if (at_ == text_.size() || text_[at_] != '[') return true;
    }
    at_ = begin;
    return false;
  }
  void expect(std::string_view token) {
    const bool found = accept(token);
    require(found, cat("'", token, "'"));
  }
  std::string word(std::string_view expected) {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
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
  int axis() {
    const size_t begin = at_;
    const int64_t number = integer();
    if (number > std::numeric_limits<int>::max()) at_ = begin;
    require(number <= std::numeric_limits<int>::max(), "an axis");
    return static_cast<int>(number);
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
  Schedule schedule_;
  std::vector<bool> listed_;
  size_t at_ = 0;
  std::map<std::string, ValueId> ids_;
};

}  // namespace

std::string_view name(Parallel parallel) { return kParallelNames[static_cast<size_t>(parallel)]; }
std::string_view name(Memory memory) { return memory == Memory::kShared ? "shared" : "register"; }

std::string print(const ir::Fusion& fusion, const Schedule& schedule) {
  const Schedule start = unscheduled(fusion);
  std::string text = "schedule {\n";
  for (size_t id = 0; id < schedule.domains.size(); ++id) {
    const Domain& domain = schedule.domains[id];
    if (domain == start.domains[id]) continue;
    std::vector<std::string> loops;
    for (const auto& [extent, parallel] : domain.loop) {
      loops.push_back(parallel == Parallel::kSerial ? cat(extent) : cat(extent, " ", name(parallel)));
    }
    text += cat("  ", fusion.values[id].name, "[", join(domain.logical, ","), "]:");
    for (const Transform& transform : domain.transforms) text += std::visit(TransformPrinter{fusion}, transform);
    text += cat(" -> [", join(loops, ", "), "]");
    if (domain.inline_at > 0) text += cat(" inline ", domain.inline_at);
    if (domain.memory == Memory::kShared) text += " shared";
    if (!domain.storage.empty()) {
      text += cat(" (", join(domain.storage, ","), domain.pad > 0 ? cat(" pad ", domain.pad) : "", ")");
    }
    if (domain.stages != 1) text += cat(" circular ", domain.stages, " prefetch ", domain.prefetch);
    text += "\n";
  }
  return text + "}\n";
}

Schedule parse(const ir::Fusion& fusion, std::string_view text) { return Parser(fusion, text).run(); }

}  // namespace jf::schedule
