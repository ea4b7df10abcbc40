#include "codegen/functor.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "codegen/dialect.h"
#include "codegen/generate.h"
#include "codegen/printer.h"

namespace jf::codegen {

namespace {

using namespace loops;

// Whether a statement depends on a loop's variable, by itself or by what such statements have computed.
class Depends {
 public:
  explicit Depends(int variable) : variable_(variable) {}

  bool operator()(const Stmt& stmt) {
    bool depends = true;
    RegisterId result = -1;
    if (const auto* load = std::get_if<Load>(&stmt.node)) {
      depends = on(load->offset) || on(load->when) || on(load->or_first);
      for (const Range& range : load->within) depends = depends || on(range.index);
      for (const Step& step : load->steps) depends = depends || registers_.count(step.index) > 0;
      result = load->result;
    } else if (const auto* from = std::get_if<FromIndex>(&stmt.node)) {
      depends = on(from->base);
      result = from->result;
    } else if (const auto* search = std::get_if<Search>(&stmt.node)) {
      depends = on(search->offset) || on(search->when) || registers_.count(search->number) > 0;
      result = search->result;
    } else if (const auto* compute = std::get_if<Compute>(&stmt.node)) {
      depends = std::any_of(compute->operands.begin(), compute->operands.end(),
                            [&](RegisterId id) { return registers_.count(id) > 0; });
      result = compute->result;
    }
    if (depends && result >= 0) registers_.insert(result);
    return depends;
  }

 private:
  bool on(const IndexPtr& index) const { return loops::depends(index, variable_); }
  bool on(const Condition& condition) const {
    return std::any_of(condition.begin(), condition.end(), [&](const Below& below) { return on(below.index); });
  }

  int variable_;
  std::set<RegisterId> registers_;
};

using Values = std::vector<std::pair<std::string, std::string>>;

// What body number n computes and a later one reads.
Values handed(const BodyTexts& texts, const Bodies& bodies, size_t n) {
  Values values;
  for (const auto& value : texts.bodies[n].computed) {
    const std::string name = cat(bodies.known_as[n], value.second);
    const auto reads = [&](const BodyTexts::One& body) {
      for (size_t at = body.text.find(name); at != std::string::npos; at = body.text.find(name, at + 1)) {
        const size_t end = at + name.size();
        if (end == body.text.size() || std::isdigit(static_cast<unsigned char>(body.text[end])) == 0) return true;
      }
      return false;
    };
    if (std::any_of(texts.bodies.begin() + static_cast<std::ptrdiff_t>(n), texts.bodies.end(), reads)) {
      values.push_back(value);
    }
  }
  return values;
}
std::string fields(const Values& values) {
  std::string text;
  for (const auto& [type, name] : values) text += cat("    ", type, " ", name, ";\n");
  return text;
}
std::string names(const Values& values) {
  std::string text;
  for (const auto& [type, name] : values) text += cat(text.empty() ? "" : ", ", name);
  return text;
}

}  // namespace

std::string generate_functor(const Kernel& kernel, const Functor& functor, const Target& target) {
  const auto& rows = std::get<For>(kernel.body.back().node);
  const auto& columns = std::get<For>(rows.body.back().node);
  Bodies bodies;
  Body of_group, of_row;
  Depends depends(rows.variable);
  for (const Body* body : {&kernel.body, &rows.body}) {
    for (size_t i = 0; i + 1 < body->size(); ++i) {
      const Stmt& stmt = (*body)[i];
      const auto* compute = std::get_if<Compute>(&stmt.node);
      const bool constant = compute != nullptr && compute->operands.empty();
      (constant ? bodies.constants : depends(stmt) ? of_row : of_group).push_back(stmt);
    }
  }
  bodies.bodies = {std::move(of_group), std::move(of_row), columns.body};
  bodies.known_as = {"of_group.", "of_row.", ""};
  bodies.variables = {functor.group, rows.variable, columns.variable};
  bodies.arrays = {functor.sums, functor.result};
  if (functor.tile) bodies.arrays.push_back(functor.tile->array);
  bodies.buffers.resize(kernel.buffers.size());
  for (size_t i = 0; i < functor.members.size(); ++i) bodies.buffers[functor.members[i]] = cat("b", i);
  const BodyTexts texts = print_bodies(kernel, bodies, dialect(target.platform));

  const Values of_groups = handed(texts, bodies, 0), of_rows = handed(texts, bodies, 1);
  const std::string function = "__device__ __forceinline__ ";
  const auto given = [&](size_t n) { return cat(texts.index_type, " ", texts.variables[n]); };
  const std::string &sums = kernel.arrays.at(functor.sums).name, &result = kernel.arrays.at(functor.result).name;
  const bool one = functor.first.size() == 1;
  std::string s = cat(includes({kernel}, target), "\nstruct Epilogue {\n", texts.types);
  s += cat("  static constexpr int kSums = ", functor.first.size(), ";\n");
  s += cat("  static ", function, "int first(int sum) { return ",
           one ? "" : cat("sum == 0 ? ", functor.first.front(), " : "), functor.first.back(), "; }\n");
  s += cat("  static constexpr int kTiles = ", functor.tile ? 1 : 0,
           ", kTileColumn = ", functor.tile ? functor.tile->first : 0, ";\n");
  if (functor.tile) s += cat("  using Tile = jf::", name(kernel.buffers[functor.tile->buffer].dtype), ";\n");
  s += cat("  struct Group {\n", fields(of_groups), "  };\n");
  s += cat("  struct alignas(4) Row {\n", fields(of_rows), "  };\n");
  for (int member : functor.members) {
    s += cat("  const jf::", name(kernel.buffers[member].dtype), "* __restrict__ ", bodies.buffers[member], ";\n");
  }
  s += cat("  ", function, "Group group(", given(0), ") const {\n", texts.bodies[0].text, "    return {",
           names(of_groups), "};\n  }\n");
  s += cat("  ", function, "Row row(const Group& of_group, ", given(1), ") const {\n", texts.bodies[1].text,
           "    return {", names(of_rows), "};\n  }\n");
  s += cat("  ", function, "float tile(long row, int column) const { return ");
  if (functor.tile) {
    s += cat("jf::load_splat<f32>(", bodies.buffers[functor.tile->buffer], ", row * ", functor.tile->columns,
             " + column + ", functor.tile->first, ").v[0]; }\n");
  } else {
    s += "0; }\n";
  }
  s += cat("  ", function,
           "float at(const Group& of_group, const Row& of_row, const float (&given)[kSums], float read, ", given(1),
           ", ", given(2), ") const {\n");
  if (functor.tile) s += cat("    const f32 ", kernel.arrays.at(functor.tile->array).name, " = {read};\n");
  s += one ? cat("    const f32 ", sums, " = {given[0]};\n")
           : cat("    const f32 ", sums, "[2] = {{given[0]}, {given[1]}};\n");
  s += cat("    f32 ", result, ";\n", texts.bodies[2].text, "    return ", result, ".v[0];\n  }\n};\n");
  return s;
}

}  // namespace jf::codegen
