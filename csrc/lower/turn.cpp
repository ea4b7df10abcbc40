#include "lower/turn.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "loops/bodies.h"
#include "lower/guards.h"

namespace jf::lower {
namespace {

using loops::Body;
using loops::For;
using loops::IndexKind;
using loops::IndexPtr;
using loops::Kernel;
using loops::Load;
using loops::Stmt;
using loops::Vector;

// Registers of a tile, and loops so short that turning them does not pay.
constexpr int64_t kMostElements = 128, kFewestElements = 4;
// Of a row that tiles follow each other along, what is on its way; and how many may be beside each other.
constexpr int64_t kAheadBytes = 256, kMostBeside = 8;

// A body that is no longer than this is written once for each element of a tile, which then stays in registers. Those
// of longer tiles have no room there while conditions divide them.
constexpr int64_t kMostUnrolled = 32, kMostUnrolledUnderConditions = 16, kShortBody = 12;

// Where the body reads other rows, too, hardware sees best which come next if one load reads them all, unless they are
// fetched already.
bool is_short(const Body& body, int variable) {
  const auto fetched = [&](int buffer) {
    return std::any_of(body.begin(), body.end(), [&](const Stmt& stmt) {
      const auto* prefetch = std::get_if<loops::Prefetch>(&stmt.node);
      return prefetch != nullptr && prefetch->buffer == buffer;
    });
  };
  return static_cast<int64_t>(body.size()) <= kShortBody &&
         std::all_of(body.begin(), body.end(), [&](const Stmt& stmt) {
           if (const auto* compute = std::get_if<loops::Compute>(&stmt.node)) {
             return ir::info(compute->op).operands != ir::OperandTypes::kFloating;
           }
           if (const auto* load = std::get_if<Load>(&stmt.node)) {
             return load->lane_stride == 0 || !depends(load->offset, variable) || fetched(load->buffer);
           }
           return std::holds_alternative<loops::Get>(stmt.node) || std::holds_alternative<loops::Store>(stmt.node) ||
                  std::holds_alternative<loops::Prefetch>(stmt.node);
         });
}

struct Around {
  int variable;
  int64_t extent;
};

class Turner {
 public:
  explicit Turner(Kernel& kernel) : kernel_(kernel), next_variable_(loops::next_variable(kernel)) {
    visit(kernel.body);
  }

 private:
  void visit(Body& body) {
    for (size_t i = 0; i < body.size(); ++i) {
      const size_t around = around_.size();
      if (auto* loop = std::get_if<For>(&body[i].node)) {
        const Around here{loop->variable, loop->extent};
        const bool serial = loop->parallel == loops::Parallel::kSerial;
        Body before = tiles(*loop);
        body.insert(body.begin() + static_cast<std::ptrdiff_t>(i), before.begin(), before.end());
        i += before.size();
        if (serial) around_.push_back(here);
      }
      loops::visit_body(body[i], [&](Body& inner) { visit(inner); });
      around_.resize(around);
    }
  }

  // What goes before the loop; its loads are changed accordingly. The loop holds one vector, under conditions or not.
  Body tiles(For& loop) {
    const bool walks = loop.parallel == loops::Parallel::kSerial && !loop.reverse && loop.runs.empty();
    if (!walks || loop.extent < kFewestElements || loop.extent > kMostElements) return {};
    loops::Condition outside, limits;
    Body* inner = &loop.body;
    while (inner->size() == 1 && std::holds_alternative<loops::Guard>(inner->front().node)) {
      auto& guard = std::get<loops::Guard>(inner->front().node);
      for (const loops::Below& below : guard.below) {
        const std::optional<int64_t> step = step_of(below.index, loop.variable);
        if (!step || *step > 1 || below.variable >= 0) return {};
        if (*step == 0) {
          outside.push_back(below);
        } else {
          limits.push_back({replace(below.index, loop.variable, loops::constant(0)), below.bound});
        }
      }
      inner = &guard.body;
    }
    if (inner->size() != 1 || !std::holds_alternative<Vector>(inner->front().node)) return {};
    auto& vector = std::get<Vector>(inner->front().node);
    if (depends(vector.base, loop.variable)) return {};
    // Loads at places that the body reads itself stay in it.
    for (const Stmt& stmt : vector.body) {
      if (std::holds_alternative<loops::ReadIndex>(stmt.node)) return {};
    }

    Vector filled{next_variable_, vector.base, vector.limits, {}};
    Body result;
    std::optional<int> along;  // the variable of a loop over tiles along rows
    for (Stmt& stmt : vector.body) {
      const auto* load = std::get_if<Load>(&stmt.node);
      if (load == nullptr || std::abs(load->lane_stride) <= 1) continue;
      const int64_t step = step_of(load->offset, loop.variable).value_or(0);
      if (step != 1 && (step != -1 || !limits.empty())) continue;
      if (!load->when.empty() || !load->within.empty() || !load->steps.empty() || load->rows) continue;
      const int array = static_cast<int>(kernel_.arrays.size());
      kernel_.arrays.push_back(
          {kernel_.buffers[load->buffer].name + "_tile", kernel_.registers[load->result], loop.extent});
      // Rows are loaded forwards also where the loop goes backwards.
      const int64_t last = loop.extent - 1;
      const IndexPtr place = loops::variable(loop.variable);
      const IndexPtr first = replace(load->offset, loop.variable, loops::constant(step > 0 ? 0 : last));
      if (const auto tiles = along_rows(*load, loop.extent)) along = tiles;
      filled.body.push_back(
          {loops::TurnedLoad{array, load->buffer, replace(first, vector.variable, loops::variable(filled.variable)),
                             load->lane_stride, ahead(*load, loop.extent), limits}});
      result.push_back({loops::Declare{array, std::nullopt}});
      stmt = {loops::Get{load->result, array, step > 0 ? place : minus(loops::constant(last), place)}};
    }
    if (result.empty()) return {};
    if (along && limits.empty()) fetch_next(vector.body, loop.variable, *along);
    const int64_t most = limits.empty() ? kMostUnrolled : kMostUnrolledUnderConditions;
    if (loop.extent <= most && is_short(vector.body, loop.variable)) loop.parallel = loops::Parallel::kUnroll;
    ++next_variable_;
    Stmt fill{std::move(filled)};
    if (!outside.empty()) fill = {loops::Guard{std::move(outside), {std::move(fill)}}};
    result.push_back(std::move(fill));
    return result;
  }

  // The loop in which tiles follow each other along the rows that they load, but for a few beside each other.
  std::optional<int> along_rows(const Load& load, int64_t tile) const {
    for (auto loop = around_.rbegin(); loop != around_.rend(); ++loop) {
      if (step_of(load.offset, loop->variable) == tile) return loop->variable;
      if (loop->extent > kMostBeside) break;
    }
    return std::nullopt;
  }
  // There a few tiles on; else the next rows.
  int64_t ahead(const Load& load, int64_t tile) const {
    if (along_rows(load, tile)) return kAheadBytes / size_of(kernel_.buffers[load.buffer].dtype);
    return kernel_.width * load.lane_stride;
  }

  // Fetches what the next tile reads of other rows: a few lines of each, which hardware does not see coming.
  static void fetch_next(Body& body, int variable, int along) {
    Body result;
    for (Stmt& stmt : body) {
      const auto* load = std::get_if<Load>(&stmt.node);
      const bool plain =
          load != nullptr && load->lane_stride == 1 && loops::is_plain(*load) && depends(load->offset, variable);
      const std::optional<int64_t> step = plain ? step_of(load->offset, along) : std::nullopt;
      if (step.value_or(0) != 0) result.push_back({loops::Prefetch{load->buffer, loops::moved(load->offset, *step)}});
      result.push_back(std::move(stmt));
    }
    body = std::move(result);
  }

  Kernel& kernel_;
  int next_variable_;
  std::vector<Around> around_;  // serial loops, the innermost last
};

}  // namespace

void turn_gathers(Kernel& kernel) { Turner turner(kernel); }

}  // namespace jf::lower
