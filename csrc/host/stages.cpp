#include "host/stages.h"

#include <algorithm>

#include "base/embedded.h"
#include "base/error.h"
#include "codegen/anonymous.h"
#include "codegen/generate.h"
#include "codegen/shared_memory.h"
#include "grouped/cuda/grouped_cuda.h"
#include "grouped/cuda/hopper.h"
#include "host/report.h"
#include "host/request.h"
#include "ir/text.h"
#include "loops/kernel.h"
#include "runtime/compile.h"
#include "runtime/disassemble.h"

namespace jf::host {
namespace {

// A generated kernel: everything it needs is in its buffers.
StepSource kernel_source(const KernelStep& step, runtime::Source source) {
  StepSource result{std::move(source), {}};
  result.launch.entry = result.source.entries.front();
  auto extent = [](int64_t n) { return static_cast<unsigned>(n); };
  result.launch.grid = {extent(step.kernel.grid * step.kernel.cluster), extent(step.kernel.grid_y)};
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

// A hand-written one: its text, and what its maps are of.
StepSource written_source(const grouped::CudaKernel& kernel, std::vector<int64_t> scalars) {
  StepSource result;
  result.source.language = runtime::Language::kCuda;
  result.source.text = kernel.instantiation;
  result.source.entries = {kernel.entry};
  result.source.headers = embedded_includes(kernel.instantiation);
  result.launch.entry = kernel.entry;
  result.launch.grid.x = static_cast<unsigned>(kernel.grid);
  result.launch.block.x = static_cast<unsigned>(kernel.block);
  result.launch.cluster = kernel.cluster;
  result.launch.shared_bytes = kernel.shared_bytes;
  for (const grouped::CudaMap& map : kernel.maps) result.launch.maps.push_back({map.buffer, map.layout});
  result.launch.ones = kernel.ones;
  result.launch.together = kernel.together;
  result.launch.scalars = std::move(scalars);
  return result;
}

// Its number among the step's buffers.
int scratch_buffer(const grouped::Problem& p) { return grouped::out_argument(p) + 1; }

StepSource grouped_source(const GroupedStep& step, const Target& target) {
  const grouped::Problem& p = step.problem;
  const grouped::CudaKernel kernel = step.epilogue ? grouped::cuda_kernel(p, *step.epilogue, target, step.parameters)
                                                   : grouped::cuda_kernel(p, target, step.parameters);
  StepSource result = written_source(
      kernel, {p.m, p.k, step.epilogue ? step.epilogue->n : p.n, p.groups, p.lhs_rows > 0 ? p.lhs_rows : p.rows});
  if (kernel.counts) result.launch.counter = scratch_buffer(p);
  if (kernel.shares) result.launch.null = scratch_buffer(p);
  return result;
}

std::string step_name(const Step& step) {
  if (const auto* kernel = std::get_if<KernelStep>(&step)) return kernel->kernel.name;
  if (const auto* written = std::get_if<WrittenStep>(&step)) return written->name;
  return std::get<GroupedStep>(step).name;
}

std::string loops_text(const Step& step) {
  if (const auto* kernel = std::get_if<KernelStep>(&step)) return print(kernel->kernel);
  if (std::holds_alternative<WrittenStep>(step)) return cat(step_name(step), ": hand-written kernel\n");
  const auto& grouped = std::get<GroupedStep>(step);
  return cat("grouped ", grouped.name, ": hand-written kernel", grouped.epilogue ? " with an epilogue" : "",
             grouped.tail ? cat(", which calls\n", print(grouped.tail->kernel)) : "\n");
}

}  // namespace

std::optional<StepSource> step_source(const Step& step, const Target& target) {
  if (const auto* kernel = std::get_if<KernelStep>(&step)) {
    return kernel_source(*kernel, codegen::generate({kernel->kernel}, target));
  }
  if (const auto* written = std::get_if<WrittenStep>(&step)) return written_source(written->kernel, written->scalars);
  const auto& grouped = std::get<GroupedStep>(step);
  if (target.platform != Platform::kCpu) return grouped_source(grouped, target);
  if (!grouped.tail) return std::nullopt;
  return kernel_source({grouped.tail->kernel, {}}, codegen::generate({grouped.tail->kernel}, target));
}

CompiledStep compiled_step(const Step& step, const Target& target) {
  if (const auto* kernel = std::get_if<KernelStep>(&step)) {
    codegen::Anonymous anonymous = codegen::generate_anonymous(kernel->kernel, target);
    CompiledStep result{kernel_source(*kernel, std::move(anonymous.source)), {}, {}};
    for (int parameter : anonymous.parameters) result.buffers.push_back(kernel->buffers.at(parameter));
    result.parameters = anonymous.parameters;
    for (StepMap& map : result.source->launch.maps) {
      const auto at = std::find(anonymous.parameters.begin(), anonymous.parameters.end(), map.buffer);
      map.buffer = static_cast<int>(at - anonymous.parameters.begin());
    }
    return result;
  }
  if (const auto* written = std::get_if<WrittenStep>(&step)) return {step_source(step, target), written->buffers, {}};
  if (const auto& grouped = std::get<GroupedStep>(step); grouped.tail) {
    const size_t own = grouped.buffers.size() - grouped.tail->kernel.buffers.size();
    codegen::Anonymous anonymous = codegen::generate_anonymous(grouped.tail->kernel, target);
    CompiledStep result{kernel_source({grouped.tail->kernel, {}}, std::move(anonymous.source)), {}, {}};
    result.buffers.assign(grouped.buffers.begin(), grouped.buffers.begin() + static_cast<std::ptrdiff_t>(own));
    for (int parameter : anonymous.parameters) result.buffers.push_back(grouped.buffers.at(own + parameter));
    result.parameters = anonymous.parameters;
    return result;
  }
  const auto& product = std::get<GroupedStep>(step);
  CompiledStep result{step_source(step, target), product.buffers, {}};
  const bool takes_scratch = result.source && (result.source->launch.counter || result.source->launch.null);
  if (result.source && !takes_scratch && grouped::cuda_scratch_bytes(product.problem) > 0) {
    result.buffers.erase(result.buffers.begin() + scratch_buffer(product.problem));
  }
  return result;
}

std::map<std::string, std::string> stages(const std::string& program, const std::string& target_text) {
  const Target target = parse_target(target_text);
  const Request request = parse_request(program);
  return reported(program, [&] {
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
  });
}

std::vector<CompiledSource> compile_cuda(const std::string& program, const std::string& target_text) {
  const Target target = parse_target(target_text);
  JF_REQUIRE(target.platform == Platform::kCuda, "[compile_cuda] expected a CUDA target, got '", target_text, "'");
  return reported(program, [&] {
    std::vector<CompiledSource> result;
    for (const Step& step : build(parse_request(program), target).steps) {
      const StepSource compiled = *compiled_step(step, target).source;
      result.push_back({compiled.launch.entry, step_source(step, target)->source.text,
                        runtime::compile(compiled.source, target)->bytes});
    }
    return result;
  });
}

std::string sass(const std::string& program, const std::string& target_text) {
  const Target target = parse_target(target_text);
  JF_REQUIRE(target.platform == Platform::kCuda, "[as_text] stage sass is for platform cuda, got '", target_text, "'");
  return reported(program, [&] {
    std::string text;
    for (const Step& step : build(parse_request(program), target).steps) {
      const StepSource compiled = *compiled_step(step, target).source;
      text += cat("// ", step_name(step), ", compiled as ", compiled.launch.entry, "\n",
                  runtime::disassemble(runtime::compile(compiled.source, target)->bytes), "\n");
    }
    return text;
  });
}

}  // namespace jf::host
