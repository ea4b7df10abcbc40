#include "host/request.h"

#include <algorithm>

#include "base/error.h"
#include "base/lists.h"
#include "host/quantized_product.h"
#include "host/zeros.h"
#include "ir/results.h"
#include "ir/text.h"
#include "lower/lower.h"
#include "lower/pairs.h"

namespace jf::host {

Request parse_request(std::string_view program) {
  constexpr std::string_view kSchedule = "\nschedule {";
  constexpr std::string_view kKernel = "\nkernel ", kTuned = "\ntuned {";
  if (const size_t end = program.find(kKernel); end != program.npos) {
    Request request{ir::parse(program.substr(0, end)), std::nullopt};
    request.written = parse_written(request.fusion, program.substr(end + kKernel.size()));
    return request;
  }
  if (const size_t end = program.find(kQuantizedLine); end != program.npos) {
    Request request{ir::parse(program.substr(0, end)), std::nullopt};
    request.quantized = parse_quantized(program.substr(end + 1));
    return request;
  }
  if (const size_t end = program.find(kTuned); end != program.npos) {
    Request request{ir::parse(program.substr(0, end)), std::nullopt};
    request.tuning = parse_tuning(program.substr(end + 1));
    return request;
  }
  const size_t end = program.find(kSchedule);
  Request request{ir::parse(program.substr(0, end)), std::nullopt};
  if (end != program.npos) request.schedule = schedule::parse(request.fusion, program.substr(end));
  return request;
}

Program build(const Request& request, const Target& target) {
  const auto& [fusion, schedule, written, quantized, tuning] = request;
  if (quantized != grouped::OutputFormat::kNone) return quantized_product(fusion, quantized, target);
  if (!schedule && !written) return build(fusion, target, tuning);
  Program program;
  program.name = fusion.name;
  std::vector<BufferRef> buffers;
  auto add = [&](const std::vector<ir::ValueId>& ids, BufferKind kind, std::vector<int64_t>& bytes) {
    for (ir::ValueId id : ids) {
      buffers.push_back({kind, static_cast<int64_t>(bytes.size())});
      bytes.push_back(bytes_of(fusion.values[id].dtype, ir::elements(fusion.values[id])));
    }
  };
  add(fusion.inputs, BufferKind::kInput, program.input_bytes);
  if (written) {
    add(fusion.outputs, BufferKind::kOutput, program.output_bytes);
    program.segments = cat("segment 0: a hand-written kernel\n", ir::print(fusion));
    program.facts.push_back(kernel_facts(fusion));
    KernelFacts& facts = program.facts.back();
    facts.strategy = "written";
    facts.reason = "a hand-written kernel";
    program.steps.push_back(written_step(fusion, *written, target, std::move(buffers), facts.parameters));
    return program;
  }
  const std::vector<ir::Result> results = ir::results(fusion);
  std::vector<Flow> writes;
  for (const ir::Result& result : results) {
    const ir::Value& first = fusion.values[result.outputs.front()];
    const BufferRef array{BufferKind::kOutput, static_cast<int64_t>(program.output_bytes.size())};
    buffers.insert(buffers.end(), result.outputs.size(), array);
    const int64_t elements = product(result.shape);
    program.output_bytes.push_back(bytes_of(first.dtype, elements));
    program.outputs.push_back(first.name);
    writes.push_back(
        {first.name, std::string(name(first.dtype)), result.shape, bytes_of(first.dtype, elements - result.missing)});
  }
  program.segments = cat("segment 0 by hand: one kernel, scheduled by the caller\n", ir::print(fusion));
  program.schedule = schedule::print(fusion, *schedule);
  for (const ir::Op& op : fusion.ops) {
    if (op.kind != ir::OpKind::kCombine || ir::elements(fusion.values[op.output]) == 0) continue;
    const auto at = std::find(fusion.outputs.begin(), fusion.outputs.end(), op.output);
    if (at == fusion.outputs.end()) continue;  // nothing is stored; lower says why it may not be read
    add_zeros(fusion, op.output, buffers[fusion.inputs.size() + (at - fusion.outputs.begin())], target, program);
  }
  program.scheduled.push_back({fusion, *schedule});
  program.facts.push_back(kernel_facts(fusion));
  program.facts.back().writes = std::move(writes);
  program.facts.back().strategy = "by hand";
  program.facts.back().reason = "scheduled by the caller";
  loops::Kernel kernel = lower::lower(fusion, *schedule, target);
  JF_REQUIRE(lower::stores_pairs(kernel), "[lower] ", fusion.name, " stores u4, two to a byte; expected vectors along ",
             "their last axis, in a kernel for GPUs: convert them to u8 instead, or parallelize that axis by lanes");
  program.steps.push_back(KernelStep{std::move(kernel), std::move(buffers)});
  return program;
}

}  // namespace jf::host
