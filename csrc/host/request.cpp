#include "host/request.h"

#include <algorithm>

#include "base/error.h"
#include "host/zeros.h"
#include "ir/text.h"
#include "lower/lower.h"

namespace jf::host {
namespace {

// A fusion of matrices [matrices, rows, columns] that gives their elements as f8e4m3fn, and the scales.
grouped::Quantization quantization(const ir::Fusion& fusion, std::string_view line) {
  const auto value = [&](ir::ValueId id) { return fusion.values[id]; };
  const bool fits = fusion.inputs.size() == 1 && fusion.outputs.size() == 2 &&
                    value(fusion.inputs[0]).axes.size() == 3 && value(fusion.outputs[0]).dtype == DType::kF8E4M3 &&
                    value(fusion.outputs[1]).dtype == DType::kF32;
  JF_REQUIRE(fits, "[quantize] expected matrices that become f8e4m3fn elements and f32 scales, got\n",
             ir::print(fusion));
  const std::vector<int64_t> shape = ir::shape(value(fusion.inputs[0]));
  grouped::Quantization q{value(fusion.inputs[0]).dtype, shape[0], shape[1], shape[2], false, false};
  const auto holds = [&](std::string_view what) { return line.find(what) != line.npos; };
  q.of_columns = holds("columns=1"), q.transpose = holds("transpose=1");
  const int64_t lines = q.transpose ? q.columns : q.rows;
  JF_REQUIRE((ir::shape(value(fusion.outputs[0])) == std::vector{q.matrices, lines, q.pitch()}),
             "[quantize] expected elements [", q.matrices, ",", lines, ",", q.pitch(), "], got\n", ir::print(fusion));
  JF_REQUIRE(q.transpose || !q.of_columns, "[quantize] columns=1 needs transpose=1");
  return q;
}

}  // namespace

Request parse_request(std::string_view program) {
  constexpr std::string_view kSchedule = "\nschedule {";
  constexpr std::string_view kQuantize = "\nkernel quantize", kTuned = "\ntuned {";
  if (const size_t end = program.find(kQuantize); end != program.npos) {
    Request request{ir::parse(program.substr(0, end)), std::nullopt};
    request.quantization = quantization(request.fusion, program.substr(end + kQuantize.size()));
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
  const auto& [fusion, schedule, quantization, tuning] = request;
  if (!schedule && !quantization) return build(fusion, target, tuning);
  Program program;
  program.name = fusion.name;
  std::vector<BufferRef> buffers;
  auto add = [&](const std::vector<ir::ValueId>& ids, BufferKind kind, std::vector<int64_t>& bytes) {
    for (ir::ValueId id : ids) {
      buffers.push_back({kind, static_cast<int64_t>(bytes.size())});
      bytes.push_back(ir::elements(fusion.values[id]) * size_of(fusion.values[id].dtype));
    }
  };
  add(fusion.inputs, BufferKind::kInput, program.input_bytes);
  add(fusion.outputs, BufferKind::kOutput, program.output_bytes);
  if (quantization) {
    program.segments = cat("segment 0: a hand-written kernel\n", ir::print(fusion));
    program.facts.push_back(kernel_facts(fusion));
    program.facts.back().strategy = "written";
    program.facts.back().reason = "a hand-written kernel";
    grouped::CudaKernel kernel = grouped::quantize_kernel(*quantization, target);
    program.facts.back().parameters = grouped::print(grouped::choose_quantize(*quantization, target));
    program.steps.push_back(WrittenStep{
        fusion.name, std::move(kernel), {quantization->rows, quantization->columns, quantization->pitch()}, buffers});
    return program;
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
  program.facts.back().strategy = "by hand";
  program.facts.back().reason = "scheduled by the caller";
  program.steps.push_back(KernelStep{lower::lower(fusion, *schedule, target), std::move(buffers)});
  return program;
}

}  // namespace jf::host
