#include "host/stages.h"

#include "base/embedded.h"
#include "base/error.h"
#include "codegen/generate.h"
#include "codegen/shared_memory.h"
#include "grouped/cuda/grouped_cuda.h"
#include "host/request.h"
#include "ir/text.h"
#include "loops/kernel.h"
#include "runtime/compile.h"

namespace jf::host {
namespace {

// A generated kernel: everything it needs is in its buffers.
StepSource kernel_source(const KernelStep& step, const Target& target) {
  StepSource result{codegen::generate({step.kernel}, target), {}};
  result.launch.entry = step.kernel.name;
  auto extent = [](int64_t n) { return static_cast<unsigned>(n); };
  result.launch.grid = {extent(step.kernel.grid), extent(step.kernel.grid_y)};
  result.launch.block = {extent(step.kernel.block), extent(step.kernel.block_y)};
  result.launch.shared_bytes = codegen::dynamic_shared_bytes(step.kernel);
  for (const loops::TensorMap& map : step.kernel.maps) {
    StepMap made{map.buffer, {}};
    const int64_t bytes = size_of(step.kernel.buffers[map.buffer].dtype);
    made.layout.axes = static_cast<int>(map.box.size());
    made.layout.element_bytes = static_cast<int>(bytes);
    made.layout.swizzle = map.swizzle;
    for (size_t a = 0; a < map.box.size(); ++a) {
      made.layout.extents[a] = static_cast<uint64_t>(map.extents[a]);
      made.layout.stride_bytes[a] = static_cast<uint64_t>(map.strides[a] * bytes);
      made.layout.box[a] = static_cast<uint32_t>(map.box[a]);
    }
    result.launch.maps.push_back(made);
  }
  return result;
}

StepSource grouped_source(const GroupedStep& step, const Target& target) {
  const grouped::Problem& p = step.problem;
  const grouped::CudaKernel kernel = grouped::cuda_kernel(p, grouped::choose(p, target), target);
  StepSource result;
  result.source.language = runtime::Language::kCuda;
  result.source.text = kernel.instantiation;
  result.source.entries = {kernel.entry};
  result.source.headers = embedded_includes(kernel.instantiation);
  result.launch.entry = kernel.entry;
  result.launch.grid.x = static_cast<unsigned>(kernel.grid);
  result.launch.block.x = static_cast<unsigned>(kernel.block);
  result.launch.shared_bytes = kernel.shared_bytes;
  result.launch.scalars = {p.m, p.k, p.n, p.groups, p.rows};
  return result;
}

std::string loops_text(const Step& step) {
  if (const auto* kernel = std::get_if<KernelStep>(&step)) return print(kernel->kernel);
  return cat("grouped ", std::get<GroupedStep>(step).name, ": hand-written kernel\n");
}

}  // namespace

std::optional<StepSource> step_source(const Step& step, const Target& target) {
  if (const auto* kernel = std::get_if<KernelStep>(&step)) return kernel_source(*kernel, target);
  if (target.platform == Platform::kCpu) return std::nullopt;
  return grouped_source(std::get<GroupedStep>(step), target);
}

std::map<std::string, std::string> stages(const std::string& program, const std::string& target_text) {
  const Target target = parse_target(target_text);
  const Request request = parse_request(program);
  const Program built = build(request, target);
  std::map<std::string, std::string> result = {{"fusion", ir::print(request.fusion)},
                                               {"segments", built.segments},
                                               {"schedule", built.schedule},
                                               {"host", print(built)}};
  std::string& loops = result["loops"];
  std::string& source = result["source"];
  for (const Step& step : built.steps) {
    loops += loops_text(step);
    if (const std::optional<StepSource> s = step_source(step, target)) source += s->source.text;
  }
  return result;
}

int64_t workspace_bytes(const std::string& program, const std::string& target) {
  return build(parse_request(program), parse_target(target)).workspace_bytes;
}

std::vector<CompiledSource> compile_cuda(const std::string& program, const std::string& target_text) {
  const Target target = parse_target(target_text);
  JF_REQUIRE(target.platform == Platform::kCuda, "[compile_cuda] expected a CUDA target, got '", target_text, "'");
  std::vector<CompiledSource> result;
  for (const Step& step : build(parse_request(program), target).steps) {
    const std::optional<StepSource> s = step_source(step, target);
    result.push_back({s->launch.entry, s->source.text, runtime::compile(s->source, target)->bytes});
  }
  return result;
}

}  // namespace jf::host
