#include "lower/prefetch_gathered.h"

#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "loops/bodies.h"
#include "lower/prefetch.h"

namespace jf::lower {
namespace {

using loops::Body;
using loops::For;
using loops::IndexPtr;
using loops::Kernel;
using loops::Load;
using loops::RegisterId;
using loops::Stmt;

// A row's statements that its numbers come from, once more for the next row.
class NextRow {
 public:
  NextRow(Kernel& kernel, const For& rows, bool ends_early)
      : kernel_(kernel),
        variable_(rows.variable),
        ends_early_(ends_early),
        next_(loops::least(loops::add(loops::variable(rows.variable), loops::constant(1)),
                           loops::constant(rows.extent - 1))) {}

  // The statements before a pass that give the number; false where one of them cannot be repeated. Registers of
  // statements around the loop stay.
  bool repeat(const Body& body, size_t before, RegisterId number) {
    std::set<RegisterId> needed{number};
    std::vector<const Stmt*> wanted;
    for (size_t i = before; i-- > 0;) {
      if (needed.count(result_of(body[i])) == 0 || again_.count(result_of(body[i])) > 0) continue;
      wanted.push_back(&body[i]);
      if (const auto* compute = std::get_if<loops::Compute>(&body[i].node)) {
        needed.insert(compute->operands.begin(), compute->operands.end());
      } else if (!is_plain(std::get_if<Load>(&body[i].node))) {
        return false;
      }
    }
    for (auto stmt = wanted.rbegin(); stmt != wanted.rend(); ++stmt) copy(**stmt);
    return again_.count(number) > 0;
  }
  RegisterId of(RegisterId number) const {
    const auto found = again_.find(number);
    return found == again_.end() ? number : found->second;
  }
  IndexPtr place(const IndexPtr& index) const { return loops::replace(index, variable_, next_); }
  Body&& statements() && { return std::move(statements_); }

 private:
  static RegisterId result_of(const Stmt& stmt) {
    return std::visit(
        [](const auto& node) {
          if constexpr (requires { RegisterId{node.result}; }) return node.result;
          return -1;
        },
        stmt.node);
  }
  bool is_plain(const Load* load) const {
    return load != nullptr && kernel_.buffers[load->buffer].bytes > 0 && load->lane_stride == 0 &&
           loops::is_plain(*load);
  }
  void copy(Stmt stmt) {
    const RegisterId old = result_of(stmt), result = static_cast<RegisterId>(kernel_.registers.size());
    kernel_.registers.push_back(DType{kernel_.registers[old]});
    if (auto* load = std::get_if<Load>(&stmt.node)) {
      const loops::Buffer& buffer = kernel_.buffers[load->buffer];
      load->result = result;
      load->offset = place(load->offset);
      // Where the array ends before the loop does.
      if (ends_early_) {
        load->offset = loops::least(load->offset, loops::constant(buffer.bytes / size_of(buffer.dtype) - 1));
      }
    } else {
      auto& compute = std::get<loops::Compute>(stmt.node);
      compute.result = result;
      for (RegisterId& operand : compute.operands) operand = of(operand);
      compute.comment = "of the next row";
    }
    again_.emplace(old, result);
    statements_.push_back(std::move(stmt));
  }

  Kernel& kernel_;
  int64_t variable_;
  bool ends_early_;
  IndexPtr next_;
  std::map<RegisterId, RegisterId> again_;
  Body statements_;
};

bool gathers_rows(const Kernel& kernel, const Load& load) {
  const bool plain = load.when.empty() && load.within.empty() && load.or_first.empty() && !load.rows;
  if (!plain || load.lane_stride != 1 || load.steps.size() != 1 || load.steps[0].each) return false;
  const int64_t bytes = load.steps[0].weight * size_of(kernel.buffers[load.buffer].dtype);
  return bytes >= kShortestRow && bytes <= kLongestRow;
}

// The pass is statement `at` of a row, which grows by what comes before it; returns by how much.
size_t prefetch_in_pass(Kernel& kernel, For& rows, size_t at) {
  Body& row = loops::inside(rows);
  NextRow next(kernel, rows, !rows.runs.empty() || &row != &rows.body);
  int64_t bytes = 0;
  const auto visit = [&](const auto& self, Body& body) -> void {
    for (size_t i = 0; i < body.size(); ++i) {
      loops::visit_body(body[i], [&](Body& inner) { self(self, inner); });
      const auto* load = std::get_if<Load>(&body[i].node);
      if (load == nullptr || !gathers_rows(kernel, *load)) continue;
      loops::Step step = load->steps[0];
      bytes += step.weight * size_of(kernel.buffers[load->buffer].dtype);
      if (bytes > kLongestRow || !next.repeat(row, at, step.index)) continue;
      step.index = next.of(step.index);
      const loops::Prefetch fetch{load->buffer, next.place(load->offset), {step}};
      body.insert(body.begin() + static_cast<std::ptrdiff_t>(i++), Stmt{fetch});
    }
  };
  visit(visit, std::get<For>(row[at].node).body);
  Body before = std::move(next).statements();
  const size_t count = before.size();
  row.insert(row.begin() + static_cast<std::ptrdiff_t>(at), std::make_move_iterator(before.begin()),
             std::make_move_iterator(before.end()));
  return count;
}

void prefetch_in(Kernel& kernel, Body& body) {
  for (Stmt& stmt : body) {
    loops::visit_body(stmt, [&](Body& inner) { prefetch_in(kernel, inner); });
    auto* rows = std::get_if<For>(&stmt.node);
    if (rows == nullptr || rows->parallel != loops::Parallel::kSerial || rows->reverse || rows->extent < 2) continue;
    const Body& row = loops::inside(*rows);
    for (size_t i = 0; i < row.size(); ++i) {
      if (std::holds_alternative<For>(row[i].node)) i += prefetch_in_pass(kernel, *rows, i);
    }
  }
}

}  // namespace

void prefetch_gathered_rows(Kernel& kernel) { prefetch_in(kernel, kernel.body); }

}  // namespace jf::lower
