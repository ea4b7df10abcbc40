#include "host/quantized_product.h"

#include <algorithm>

#include "base/error.h"
#include "grouped/cuda/hopper.h"

namespace jf::host {

Program quantized_product(const ir::Fusion& fusion, const Target& target) {
  JF_REQUIRE(target.platform == Platform::kCuda, "[quantized product] its kernel is for GPUs, got ", print(target));
  Program program = build(fusion, target);
  const auto product = std::find_if(program.facts.begin(), program.facts.end(),
                                    [](const KernelFacts& facts) { return facts.strategy == "grouped"; });
  auto* step = program.steps.size() == 1 ? std::get_if<GroupedStep>(&program.steps.front()) : nullptr;
  JF_REQUIRE(step != nullptr && fusion.outputs.size() == 1 && product != program.facts.end(),
             "[quantized product] expected a product that is one kernel with all that follows it, got ",
             program.steps.size(), " kernels (", product == program.facts.end() ? "none of a product" : product->reason,
             ")");
  step->problem.quantizes = true;
  const grouped::RowEpilogue* epilogue = step->epilogue ? &*step->epilogue : nullptr;
  const std::string why = grouped::why_not_quantize(step->problem, epilogue, target);
  JF_REQUIRE(why.empty(), "[quantized product] ", why);
  const int64_t m = step->problem.m, n = epilogue ? epilogue->n : step->problem.n;
  constexpr int64_t kScaleColumns = 128;
  step->buffers.push_back({BufferKind::kOutput, 1});
  program.output_bytes = {m * n, m * n / kScaleColumns * size_of(DType::kF32)};

  KernelFacts& facts = *product;
  facts.fields.clear();
  facts.parameters += " quantized";
  const std::string name = facts.writes.front().value;
  facts.writes = {{name, "f8e4m3fn", {m, n}, program.output_bytes[0]},
                  {cat(name, "_scales"), "f32", {m, n / kScaleColumns}, program.output_bytes[1]}};
  return program;
}

}  // namespace jf::host
