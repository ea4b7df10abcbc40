#include "host/quantized_product.h"

#include <algorithm>

#include "base/error.h"
#include "grouped/cuda/hopper.h"

namespace jf::host {

grouped::OutputFormat parse_quantized(std::string_view line) {
  std::string names;
  for (const grouped::OutputFormatFacts& facts : grouped::kOutputFormats) {
    if (facts.name.empty()) continue;
    if (line == cat("quantized ", facts.name, "\n")) {
      return static_cast<grouped::OutputFormat>(&facts - grouped::kOutputFormats);
    }
    names += cat(names.empty() ? "" : ", ", facts.name);
  }
  throw UserError(cat("[quantized product] expected a line that names one of ", names, ", got ", line));
}

Program quantized_product(const ir::Fusion& fusion, grouped::OutputFormat format, const Target& target) {
  JF_REQUIRE(target.platform == Platform::kCuda, "[quantized product] its kernel is for GPUs, got ", print(target));
  Program program = build(fusion, target);
  const auto product = std::find_if(program.facts.begin(), program.facts.end(),
                                    [](const KernelFacts& facts) { return facts.strategy == "grouped"; });
  auto* step = program.steps.size() == 1 ? std::get_if<GroupedStep>(&program.steps.front()) : nullptr;
  JF_REQUIRE(step != nullptr && fusion.outputs.size() == 1 && product != program.facts.end(),
             "[quantized product] expected a product that is one kernel with all that follows it, got ",
             program.steps.size(), " kernels (", product == program.facts.end() ? "none of a product" : product->reason,
             ")");
  step->problem.quantizes = format;
  const grouped::RowEpilogue* epilogue = step->epilogue ? &*step->epilogue : nullptr;
  const std::string why = grouped::why_not_quantize(step->problem, epilogue, target);
  JF_REQUIRE(why.empty(), "[quantized product] ", why);
  const int64_t m = step->problem.m, n = epilogue ? epilogue->n : step->problem.n;
  const grouped::OutputFormatFacts& stored = grouped::facts_of(format);
  const int64_t row_bytes = n * stored.bits / 8, across = n / stored.columns;
  step->buffers.push_back({BufferKind::kOutput, 1});
  program.output_bytes = {m * row_bytes, m * across * stored.scale_bytes};

  KernelFacts& facts = *product;
  facts.fields.clear();
  facts.parameters += cat(" quantized ", stored.name);
  const std::string name = facts.writes.front().value;
  facts.writes = {{name, std::string(stored.elements), {m, row_bytes}, program.output_bytes[0]},
                  {cat(name, "_scales"), std::string(stored.scales), {m, across}, program.output_bytes[1]}};
  return program;
}

}  // namespace jf::host
