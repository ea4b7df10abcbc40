// The text form of a loop program, for dumps and golden files. Compilers never see it.
#include <charconv>

#include "base/error.h"
#include "loops/kernel.h"

namespace jf::loops {
namespace {

constexpr const char* kParallelNames[] = {"serial", "unroll", "task", "block", "thread"};

// Every operation but the outermost stands in brackets: exact, and short enough for a dump.
std::string text(const IndexPtr& index, bool nested = false) {
  auto binary = [&](const char* sign) {
    const std::string inner = cat(text(index->a, true), sign, text(index->b, true));
    return nested ? cat("(", inner, ")") : inner;
  };
  switch (index->kind) {
    case IndexKind::kConst: return cat(index->value);
    case IndexKind::kVar: return cat("i", index->value);
    case IndexKind::kAdd: return binary(" + ");
    case IndexKind::kMul: return binary(" * ");
    case IndexKind::kDiv: return binary(" / ");
    case IndexKind::kMod: return binary(" % ");
  }
  JF_CHECK(false, "index kind ", static_cast<int>(index->kind));
}

std::string text(const ir::Constant& constant) {
  if (const int64_t* integer = std::get_if<int64_t>(&constant.value)) return cat(*integer);
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), std::get<double>(constant.value)).ptr;
  return std::string(digits, end);
}

struct Printer {
  const Kernel& kernel;
  std::string out;
  int depth = 1;

  template <class... Args>
  void line(const Args&... args) {
    out += std::string(2 * depth, ' ') + cat(args...) + "\n";
  }
  std::string reg(RegisterId id) const { return cat("r", id); }
  std::string typed(RegisterId id) const { return cat(reg(id), ": ", name(kernel.registers.at(id))); }
  std::string access(int buffer, const IndexPtr& offset, int64_t lane_stride) const {
    return cat(kernel.buffers.at(buffer).name, "[", text(offset), "]",
               lane_stride == 0 ? "" : cat(" lane * ", lane_stride));
  }

  void operator()(const Body& body) {
    ++depth;
    for (const Stmt& stmt : body) std::visit(*this, stmt.node);
    --depth;
  }
  void operator()(const For& loop) {
    line("for i", loop.variable, " < ", loop.extent, " ", kParallelNames[static_cast<int>(loop.parallel)]);
    (*this)(loop.body);
  }
  void operator()(const Vector& vector) {
    line("vector i", vector.variable, " = ", text(vector.base), vector.full ? " full" : cat(" below ", vector.limit));
    (*this)(vector.body);
  }
  void operator()(const Guard& guard) {
    std::string condition;
    for (const auto& [index, bound] : guard.below) {
      condition += cat(condition.empty() ? "" : " and ", text(index), " < ", bound);
    }
    line("if ", condition);
    (*this)(guard.body);
  }
  void operator()(const Load& load) {
    line(typed(load.result), " = load ", access(load.buffer, load.offset, load.lane_stride));
  }
  void operator()(const FromIndex& from) {
    line(typed(from.result), " = index ", text(from.base),
         from.lane_stride == 0 ? "" : cat(" lane * ", from.lane_stride));
  }
  void operator()(const Compute& compute) {
    std::string operands;
    for (RegisterId id : compute.operands) operands += cat(" ", reg(id));
    if (const auto* constant = std::get_if<ir::Constant>(&compute.attribute)) operands += cat(" ", text(*constant));
    line(typed(compute.result), " = ", ir::info(compute.op).name, operands,
         compute.comment.empty() ? "" : cat("  # ", compute.comment));
  }
  void operator()(const Store& store) {
    line("store ", access(store.buffer, store.offset, store.lane_stride), " = ", reg(store.value));
  }
};

}  // namespace

std::string print(const Kernel& kernel) {
  Printer printer{kernel, cat("kernel ", kernel.name, " width=", kernel.width, " grid=", kernel.grid,
                              " block=", kernel.block, kernel.wide_index ? " wide_index" : "", "\n")};
  for (const Buffer& buffer : kernel.buffers) {
    printer.line(buffer.written ? "out " : "in ", buffer.name, ": ", name(buffer.dtype));
  }
  printer.depth = 0;
  printer(kernel.body);
  return printer.out;
}

}  // namespace jf::loops
