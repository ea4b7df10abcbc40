#include "ir/text.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"
#include "ir/verify.h"

namespace jf::ir {
namespace {

constexpr std::string_view kModeNames[] = {"rows", "contraction", "batch"};
constexpr std::string_view kScalesNames[] = {"", " scaled_rows", " scaled_blocks"};

std::string print_dims(const std::vector<int64_t>& dims) {
  std::string text;
  for (int64_t dim : dims) text += cat(text.empty() ? "" : ",", dim);
  return text;
}

std::string components(int64_t count) { return count == 1 ? "" : cat(", components=", count); }
std::string also(const std::vector<int64_t>& more) {
  return more.empty() ? "" : cat(", also=[", print_dims(more), "]");
}

struct AttributePrinter {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const Constant& c) const { return cat(" {value=", print_constant(c), "}"); }
  std::string operator()(const Slice& s) const {
    return cat(" {starts=[", print_dims(s.starts), "], strides=[", print_dims(s.strides), "]}");
  }
  std::string operator()(const Pad& p) const {
    return cat(" {starts=[", print_dims(p.from.starts), "], strides=[", print_dims(p.from.strides), "], low=[",
               print_dims(p.low), "], counts=[", print_dims(p.counts), "]}");
  }
  std::string operator()(const Take& t) const {
    return cat(" {axes=[", print_dims(t.axes), "], limits=[", print_dims(t.limits), "], dims=[", print_dims(t.dims),
               "], starts=[", print_dims(t.starts), "], strides=[", print_dims(t.strides), "]}");
  }
  std::string operator()(const Search& s) const {
    return cat(" {side=", s.left ? "left" : "right", s.dims.empty() ? "" : cat(", dims=[", print_dims(s.dims), "]"),
               "}");
  }
  std::string operator()(const Place& p) const {
    return cat(" {starts=[", print_dims(p.starts), "], shape=[", print_dims(p.shape), "]}");
  }
  std::string operator()(const Dims& d) const { return cat(" {dims=[", print_dims(d.dims), "]}"); }
  std::string operator()(const Reduce& r) const {
    return cat(" {dims=[", print_dims(r.dims), "]", r.parts > 0 ? cat(", parts=", r.parts) : "",
               r.in_turn ? ", in_turn" : "", "}");
  }
  std::string operator()(const Scan& s) const {
    return cat(" {axis=", s.axis, s.reverse ? " reverse" : "", s.parts > 0 ? cat(" parts=", s.parts) : "", "}");
  }
  std::string operator()(const Nest& n) const {
    return cat(" {most=", n.most, ", axis=", n.axis, n.by.empty() ? "" : cat(", by=[", print_dims(n.by), "]"),
               components(n.components), also(n.also), "}");
  }
  std::string operator()(const Combine& c) const {
    return cat(" {rows=", c.rows, components(c.components), also(c.also), "}");
  }
  std::string operator()(const Grouped& g) const {
    const bool numbers = g.weights == GroupedWeights::kNumbers;
    return cat(" {mode=", kModeNames[static_cast<size_t>(g.mode)], g.transpose_rhs ? " transpose_rhs" : "",
               g.leaves_padding ? " leaves_padding" : "", kScalesNames[static_cast<size_t>(g.scales)],
               numbers ? "" : cat(", weights=", name(g.weights), ", columns=", g.columns), "}");
  }
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Fusion run() {
    expect_word("fusion");
    fusion_.name = word("the fusion's name");
    expect('(');
    while (!accept(')')) {
      const std::string name = word("an input's name");
      expect(':');
      fusion_.inputs.push_back(define(name, type()));
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    expect('-');
    expect('>');
    expect('(');
    std::vector<std::string> outputs;
    while (!accept(')')) {
      outputs.push_back(word("an output's name"));
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    expect('{');
    while (!accept('}')) op();
    skip();
    require(at_ == text_.size(), "the end of the text");
    for (const std::string& name : outputs) fusion_.outputs.push_back(lookup(name));
    verify(fusion_);
    return std::move(fusion_);
  }

 private:
  void require(bool condition, std::string_view expected) const {
    if (condition) return;
    int line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    const std::string got = at_ < text_.size()
                                ? cat("'", text_.substr(at_, std::min<size_t>(20, text_.find('\n', at_) - at_)), "'")
                                : "the end";
    throw UserError(cat("[parse] line ", line, ": expected ", expected, ", got ", got));
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool accept(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    const bool found = accept(c);
    require(found, cat("'", c, "'"));
  }
  std::string word(std::string_view expected) {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    require(at_ > begin, expected);
    return std::string(text_.substr(begin, at_ - begin));
  }
  void expect_word(std::string_view expected) {
    skip();
    const size_t begin = at_;
    const std::string quoted = cat("'", expected, "'");
    const bool same = word(quoted) == expected;
    if (!same) at_ = begin;
    require(same, quoted);
  }
  int64_t integer() {
    skip();
    int64_t value = 0;
    auto [end, code] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    require(code == std::errc(), "an integer");
    at_ = end - text_.data();
    return value;
  }
  Value type() {
    Value value{"", parse_dtype(word("a dtype")), {}};
    expect('[');
    while (!accept(']')) {
      Axis axis;
      if (accept('b')) axis.kind = AxisKind::kBroadcast;
      skip();
      const bool ragged = text_.substr(at_).starts_with("ragged");
      if (ragged) expect_word("ragged");
      axis.extent = integer();
      require(axis.extent >= 0, "an extent that is not negative");
      if (ragged) {
        expect_word("of");
        axis.extents = lookup(word("the name of its extents"));
        expect_word("by");
        for (skip(); at_ < text_.size() && text_[at_] != ',' && text_[at_] != ']'; skip()) axis.by.push_back(integer());
      }
      value.axes.push_back(axis);
      if (!accept(',')) {
        expect(']');
        break;
      }
    }
    return value;
  }
  ValueId define(const std::string& name, Value value) {
    const auto id = static_cast<ValueId>(fusion_.values.size());
    require(ids_.emplace(name, id).second, cat("a new name; '", name, "' is defined already"));
    value.name = name;
    fusion_.values.push_back(std::move(value));
    return id;
  }
  ValueId lookup(const std::string& name) const {
    auto found = ids_.find(name);
    require(found != ids_.end(), cat("a defined value; '", name, "' is not"));
    return found->second;
  }
  Constant constant(DType dtype) {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '}' && !std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    const std::string_view number = text_.substr(begin, at_ - begin);
    const char* last = number.data() + number.size();
    if (!is_float(dtype)) {
      int64_t value = 0;
      auto [end, code] = std::from_chars(number.data(), last, value);
      require(code == std::errc() && end == last, "an integer before this");
      return {value};
    }
    if (number.starts_with("nan:")) {
      uint64_t bits = 0;
      auto [end, code] = std::from_chars(number.data() + 4, last, bits, 16);
      require(code == std::errc() && end == last, "the bits of a NaN before this");
      return {std::bit_cast<double>(bits)};
    }
    double value = 0;
    auto [end, code] = std::from_chars(number.data(), last, value);
    require(code == std::errc() && end == last, "a number before this");
    return {value};
  }
  std::vector<int64_t> dims() {
    std::vector<int64_t> result;
    expect('[');
    while (!accept(']')) {
      result.push_back(integer());
      if (!accept(',')) {
        expect(']');
        break;
      }
    }
    return result;
  }
  std::vector<int64_t> list(std::string_view key) {
    expect_word(key);
    expect('=');
    return dims();
  }
  int64_t parts() {
    expect('=');
    const int64_t count = integer();
    require(count > 0, "at least one part before this");
    return count;
  }

  // Each attribute from behind its first "key=" on.
  Reduce reduce() {
    Reduce result{dims()};
    if (!accept(',')) return result;
    expect_word("parts");
    result.parts = parts();
    result.in_turn = accept(',');
    if (result.in_turn) expect_word("in_turn");
    return result;
  }
  Take take() {
    Take result{dims(), {}, {}, {}, {}};
    for (const auto& [name, to] : {std::pair("limits", &result.limits), std::pair("dims", &result.dims),
                                   std::pair("starts", &result.starts), std::pair("strides", &result.strides)}) {
      expect(',');
      *to = list(name);
    }
    return result;
  }
  Attribute from_starts() {
    const std::vector<int64_t> starts = dims();
    expect(',');
    const bool is_place = word("strides or shape") == "shape";
    expect('=');
    if (is_place) return Place{starts, dims()};
    Slice slice{starts, dims()};
    if (!accept(',')) return slice;
    Pad pad{std::move(slice), list("low"), {}};
    expect(',');
    pad.counts = list("counts");
    return pad;
  }
  Search search() {
    const std::string side = word("left or right");
    require(side == "left" || side == "right", "left or right before this");
    Search result{side == "left"};
    if (accept(',')) result.dims = list("dims");
    return result;
  }
  Scan scan() {
    Scan result{integer()};
    for (skip(); at_ < text_.size() && text_[at_] != '}'; skip()) {
      const std::string next = word("reverse or parts");
      require(next == "reverse" || next == "parts", "reverse or parts before this");
      result.reverse = result.reverse || next == "reverse";
      if (next == "parts") result.parts = parts();
    }
    return result;
  }
  Nest nest() {
    Nest result{0, integer()};
    expect(',');
    expect_word("axis");
    expect('=');
    result.axis = integer();
    while (accept(',')) {
      const std::string next = word("by, components or also");
      require(next == "by" || next == "components" || next == "also", "by, components or also before this");
      expect('=');
      if (next == "components") {
        result.components = integer();
      } else {
        (next == "by" ? result.by : result.also) = dims();
      }
    }
    return result;
  }
  Combine combine() {
    Combine result{integer()};
    while (accept(',')) {
      const std::string next = word("components or also");
      require(next == "components" || next == "also", "components or also before this");
      expect('=');
      if (next == "components") {
        result.components = integer();
      } else {
        result.also = dims();
      }
    }
    return result;
  }
  Grouped grouped() {
    const std::string mode = word("rows, contraction or batch");
    const auto* found = std::find(std::begin(kModeNames), std::end(kModeNames), mode);
    require(found != std::end(kModeNames), "rows, contraction or batch before this");
    Grouped result{static_cast<GroupedMode>(found - kModeNames)};
    skip();
    result.transpose_rhs = text_.substr(at_).starts_with("transpose_rhs");
    if (result.transpose_rhs) expect_word("transpose_rhs");
    skip();
    result.leaves_padding = text_.substr(at_).starts_with("leaves_padding");
    if (result.leaves_padding) expect_word("leaves_padding");
    skip();
    if (accept(',')) {
      expect_word("weights");
      expect('=');
      result.weights = parse_weights(word("a format of weights"));
      expect(',');
      expect_word("columns");
      expect('=');
      result.columns = integer();
    } else if (at_ < text_.size() && text_[at_] != '}') {
      const std::string scales = " " + word("scaled_rows or scaled_blocks");
      require(scales == kScalesNames[1] || scales == kScalesNames[2], "scaled_rows or scaled_blocks before this");
      result.scales = scales == kScalesNames[1] ? GroupedScales::kRows : GroupedScales::kBlocks;
    }
    return result;
  }
  Attribute keyed(OpClass op_class, DType dtype) {
    const std::string key = word("value, dims, axes, starts, axis, side, most, rows or mode");
    expect('=');
    if (key == "value") return constant(dtype);
    if (key == "dims" && op_class == OpClass::kReduce) return reduce();
    if (key == "dims") return Dims{dims()};
    if (key == "axes") return take();
    if (key == "starts") return from_starts();
    if (key == "side") return search();
    if (key == "axis") return scan();
    if (key == "most") return nest();
    if (key == "rows") return combine();
    require(key == "mode", "value, dims, axes, starts, axis, side, most, rows or mode before this");
    return grouped();
  }
  Attribute attribute(OpClass op_class, DType dtype) {
    if (!accept('{')) return {};
    Attribute result = keyed(op_class, dtype);
    expect('}');
    return result;
  }

  void op() {
    const std::string name = word("a value's name or '}'");
    expect(':');
    Value value = type();
    expect('=');
    const std::string op_name = word("an op");
    const OpInfo* op_info = find_op(op_name);
    require(op_info, cat("an op of ir/ops.def; '", op_name, "' is none"));
    Op op{op_info->kind, {}, 0, {}, ""};
    expect('(');
    while (!accept(')')) {
      op.inputs.push_back(lookup(word("an operand")));
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    op.attribute = attribute(op_info->op_class, value.dtype);
    if (accept('#')) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      if (at_ < end && text_[at_] == ' ') ++at_;
      op.label = clean_label(text_.substr(at_, end - at_));
      at_ = end;
    }
    op.output = define(name, std::move(value));
    fusion_.ops.push_back(std::move(op));
  }

  std::string_view text_;
  size_t at_ = 0;
  Fusion fusion_;
  std::map<std::string, ValueId> ids_;
};

template <class Name>
std::string print_type(const Value& value, Name name_of) {
  std::string axes;
  for (const Axis& axis : value.axes) {
    axes += cat(axes.empty() ? "" : ",", axis.kind == AxisKind::kBroadcast ? "b" : "");
    if (axis.extents < 0) {
      axes += cat(axis.extent);
      continue;
    }
    axes +=
        cat(axis.kind == AxisKind::kBroadcast ? " " : "", "ragged ", axis.extent, " of ", name_of(axis.extents), " by");
    for (int64_t by : axis.by) axes += cat(" ", by);
  }
  return cat(name(value.dtype), "[", axes, "]");
}

}  // namespace

std::string print_attribute(const Attribute& attribute) { return std::visit(AttributePrinter{}, attribute); }

std::string print_type(const Value& value) {
  return print_type(value, [](ValueId id) { return cat("value ", id); });
}

std::string print_type(const Fusion& fusion, const Value& value) {
  return print_type(value, [&](ValueId id) { return fusion.values.at(id).name; });
}

std::string print_constant(const Constant& constant) {
  if (const int64_t* integer = std::get_if<int64_t>(&constant.value)) return std::to_string(*integer);
  const double value = std::get<double>(constant.value);
  char buffer[64];
  if (std::isnan(value)) {
    auto [end, code] = std::to_chars(buffer, buffer + sizeof buffer, std::bit_cast<uint64_t>(value), 16);
    return "nan:" + std::string(buffer, end);
  }
  auto [end, code] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, end);
}

std::string print(const Fusion& fusion) {
  std::string text = cat("fusion ", fusion.name, "(");
  for (size_t i = 0; i < fusion.inputs.size(); ++i) {
    const Value& value = fusion.values[fusion.inputs[i]];
    text += cat(i ? ", " : "", value.name, ": ", print_type(fusion, value));
  }
  text += ") -> (";
  for (size_t i = 0; i < fusion.outputs.size(); ++i) text += cat(i ? ", " : "", fusion.values[fusion.outputs[i]].name);
  text += ") {\n";
  for (const Op& op : fusion.ops) {
    const Value& result = fusion.values[op.output];
    text += cat("  ", result.name, ": ", print_type(fusion, result), " = ", info(op.kind).name, "(");
    for (size_t i = 0; i < op.inputs.size(); ++i) text += cat(i ? ", " : "", fusion.values[op.inputs[i]].name);
    text += cat(")", print_attribute(op.attribute));
    if (!op.label.empty()) text += "  # " + op.label;
    text += "\n";
  }
  return text + "}\n";
}

Fusion parse(std::string_view text) { return Parser(text).run(); }

std::string clean_label(std::string_view label) {
  std::string text;
  for (char c : label) text += std::isprint(static_cast<unsigned char>(c)) && c != '#' ? c : ' ';
  return text;
}

std::string identifier(std::string_view text) {
  std::string result;
  for (char c : text) result += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  if (result.empty() || std::isdigit(static_cast<unsigned char>(result[0]))) result.insert(result.begin(), '_');
  return result;
}

}  // namespace jf::ir
