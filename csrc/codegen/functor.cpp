#include "codegen/functor.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "codegen/dialect.h"
#include "codegen/generate.h"
#include "codegen/printer.h"
#include "loops/bodies.h"

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

// Drops what nothing reads, and constants get the order in which they are read: what a tail had for its number of rows,
// as what searched for a row's group, leaves no trace in the text.
void drop_unread(Bodies& bodies) {
  std::vector<RegisterId> read;  // the last first
  for (auto body = bodies.bodies.rbegin(); body != bodies.bodies.rend(); ++body) {
    Body kept;
    for (auto stmt = body->rbegin(); stmt != body->rend(); ++stmt) {
      const bool unread = std::visit(
          [&](const auto& node) {
            if constexpr (requires { node.result; }) return !contains(read, node.result);
            return false;
          },
          stmt->node);
      if (unread) continue;
      std::vector<RegisterId> own;
      for_operands(*stmt, [&](RegisterId id) { own.push_back(id); });
      read.insert(read.end(), own.rbegin(), own.rend());
      kept.push_back(std::move(*stmt));
    }
    std::reverse(kept.begin(), kept.end());
    *body = std::move(kept);
  }
  std::reverse(read.begin(), read.end());
  const auto first_read = [&](const Stmt& stmt) {
    return std::find(read.begin(), read.end(), std::get<Compute>(stmt.node).result);
  };
  std::erase_if(bodies.constants, [&](const Stmt& stmt) { return first_read(stmt) == read.end(); });
  std::stable_sort(bodies.constants.begin(), bodies.constants.end(),
                   [&](const Stmt& a, const Stmt& b) { return first_read(a) < first_read(b); });
}

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

std::string generate_functor(const Kernel& named, const Functor& functor, const Target& target) {
  Kernel anonymous = named;
  for (size_t i = 0; i < named.arrays.size(); ++i) anonymous.arrays[i].name = cat("a", i);
  const Kernel& kernel = anonymous;
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
  drop_unread(bodies);
  bodies.known_as = {"of_group.", "of_row.", ""};
  bodies.variables = {functor.group, rows.variable, columns.variable};
  bodies.arrays = {functor.sums, functor.result};
  for (const Functor::Tile& tile : functor.tiles) bodies.arrays.push_back(tile.array);
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
  const std::vector<Functor::Tile>& tiles = functor.tiles;
  const bool several = functor.results > 0;
  const auto tile_type = [&] { return name(kernel.buffers[tiles.front().buffer].dtype); };
  if (several) {
    s += cat("  static constexpr int kTiles = ", tiles.size(), ", kResults = ", functor.results, ";\n");
    s += cat("  static constexpr bool kFolds = ", functor.folds ? "true" : "false",
             ", kKeeps = ", functor.keeps ? "true" : "false", ";\n");
    s += cat("  using Tile = jf::", tiles.empty() ? "bf16" : tile_type(), ";\n");
    s += cat("  static ", function, "int tile_column(int tile) { return ",
             tiles.size() > 1 ? cat("tile == 0 ? ", tiles.front().first, " : ") : "",
             tiles.empty() ? 0 : tiles.back().first, "; }\n");
  } else {
    s += cat("  static constexpr int kTiles = ", tiles.size(),
             ", kTileColumn = ", tiles.empty() ? 0 : tiles.front().first, ";\n");
    if (!tiles.empty()) s += cat("  using Tile = jf::", tile_type(), ";\n");
  }
  s += cat("  struct Group {\n", fields(of_groups), "  };\n");
  s += cat("  struct alignas(4) Row {\n", fields(of_rows), "  };\n");
  for (int member : functor.members) {
    s += cat("  const jf::", name(kernel.buffers[member].dtype), "* __restrict__ ", bodies.buffers[member], ";\n");
  }
  s += cat("  ", function, "Group group(", given(0), ") const {\n", texts.bodies[0].text, "    return {",
           names(of_groups), "};\n  }\n");
  s += cat("  ", function, "Row row(const Group& of_group, ", given(1), ") const {\n", texts.bodies[1].text,
           "    return {", names(of_rows), "};\n  }\n");
  const auto load = [&](const Functor::Tile& tile) {
    return cat("jf::load_splat<f32>(", bodies.buffers[tile.buffer], ", row * ", tile.columns, " + column + ",
               tile.first, ").v[0]");
  };
  s += cat("  ", function, "float tile(", several ? "int which, " : "", "long row, int column) const { return ",
           tiles.size() > 1 ? cat("which == 0 ? ", load(tiles.front()), " : ") : "",
           tiles.empty() ? "0" : load(tiles.back()), "; }\n");
  const auto tile_value = [&](size_t i, std::string_view value) {
    return cat("    const f32 ", kernel.arrays.at(tiles[i].array).name, " = {", value, "};\n");
  };
  const std::string sums_text =
      cat("    const f32 ", sums, one ? " = {given[0]}" : "[2] = {{given[0]}, {given[1]}}", ";\n");
  if (several) {
    s += cat("  ", function, "void at(const Group& of_group, const Row& of_row, const float (&given)[kSums], ",
             "const float (&read)[", std::max<size_t>(tiles.size(), 1), "], ", given(1), ", ", given(2),
             ", float (&made)[kResults + 1]) const {\n");
    for (size_t i = 0; i < tiles.size(); ++i) s += tile_value(i, cat("read[", i, "]"));
    s += cat(sums_text, "    f32 ", result, "[", functor.results + 1, "];\n", texts.bodies[2].text);
    for (int i = 0; i < functor.results + functor.folds; ++i)
      s += cat("    made[", i, "] = ", result, "[", i, "].v[0];\n");
    return cat(s, "  }\n};\n");
  }
  s += cat("  ", function,
           "float at(const Group& of_group, const Row& of_row, const float (&given)[kSums], float read, ", given(1),
           ", ", given(2), ") const {\n");
  if (!tiles.empty()) s += tile_value(0, "read");
  s += cat(sums_text, "    f32 ", result, ";\n", texts.bodies[2].text, "    return ", result, ".v[0];\n  }\n};\n");
  return s;
}

}  // namespace jf::codegen
