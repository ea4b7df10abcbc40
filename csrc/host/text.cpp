#include "base/error.h"
#include "host/program.h"

namespace jf::host {
namespace {

std::string print(const BufferRef& ref) {
  switch (ref.kind) {
    case BufferKind::kInput: return cat("input ", ref.index);
    case BufferKind::kOutput: return cat("output ", ref.index);
    case BufferKind::kWorkspace: return cat("workspace + ", ref.index);
  }
  throw InternalError(__FILE__, __LINE__, "buffer kind", "unknown");
}

std::string print(const std::vector<BufferRef>& refs) {
  std::string text;
  for (const BufferRef& ref : refs) text += cat(text.empty() ? "" : ", ", print(ref));
  return text;
}

struct StepPrinter {
  std::string operator()(const KernelStep& s) const {
    return cat("launch ", s.kernel.name, " grid=", s.kernel.grid,
               s.kernel.cluster == 1 ? "" : cat(" cluster=", s.kernel.cluster), " block=", s.kernel.block, " (",
               print(s.buffers), ")");
  }
  std::string operator()(const WrittenStep& s) const {
    return cat("launch ", s.name, " grid=", s.kernel.grid, " block=", s.kernel.block, " (", print(s.buffers), ")");
  }
  std::string operator()(const GroupedStep& s) const {
    const grouped::Problem& p = s.problem;
    const std::string out = s.epilogue ? cat(" -> epilogue n=", s.epilogue->n, " ", name(s.epilogue->out))
                            : s.tail   ? cat(" -> ", s.tail->kernel.name, " n=", s.tail->n)
                                       : "";
    return cat("grouped ", s.name, " groups=", p.groups, " m=", p.m, " k=", p.k, " n=", p.n, " rows=", p.rows,
               p.lhs_rows > 0 ? cat(" of ", p.lhs_rows, " by number ") : " ", name(p.lhs), " -> ", name(p.out), out,
               " (", print(s.buffers), ")");
  }
};

}  // namespace

std::string print(const Program& program) {
  std::string text = cat("program ", program.name, " workspace=", program.workspace_bytes, "\n");
  for (const Step& step : program.steps) text += cat("  ", std::visit(StepPrinter{}, step), "\n");
  return text;
}

}  // namespace jf::host
