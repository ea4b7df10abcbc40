#include "codegen/functor.h"

#include "base/error.h"
#include "codegen/dialect.h"
#include "codegen/generate.h"
#include "codegen/printer.h"

namespace jf::codegen {

using namespace loops;

std::string generate_functor(const Kernel& kernel, const Functor& functor, const Target& target) {
  const auto& rows = std::get<For>(kernel.body.back().node);
  const auto& columns = std::get<For>(rows.body.back().node);
  TwoBodies bodies{{}, {}, columns.body, rows.variable, columns.variable, {functor.sums, functor.result}, {}};
  for (const Body* body : {&kernel.body, &rows.body}) {
    for (size_t i = 0; i + 1 < body->size(); ++i) {
      const auto* compute = std::get_if<Compute>(&(*body)[i].node);
      (compute != nullptr && compute->operands.empty() ? bodies.constants : bodies.of_row).push_back((*body)[i]);
    }
  }
  bodies.buffers.resize(kernel.buffers.size());
  for (size_t i = 0; i < functor.members.size(); ++i) bodies.buffers[functor.members[i]] = cat("b", i);
  const TwoTexts texts = print_bodies(kernel, bodies, dialect(target.platform));

  const std::string function = "  __device__ __forceinline__ ", row = cat(texts.index_type, " ", texts.row);
  const std::string &sums = kernel.arrays.at(functor.sums).name, &result = kernel.arrays.at(functor.result).name;
  const bool one = functor.first.size() == 1;
  std::string s = cat(includes({kernel}, target), "\nstruct Epilogue {\n", texts.types);
  s += cat("  static constexpr int kSums = ", functor.first.size(), ";\n");
  s += cat("  static ", function.substr(2), "int first(int sum) { return ",
           one ? "" : cat("sum == 0 ? ", functor.first.front(), " : "), functor.first.back(), "; }\n");
  std::string values;
  s += "  struct alignas(4) Row {\n";
  for (const auto& [type, name] : texts.handed) {
    s += cat("    ", type, " ", name, ";\n");
    values += cat(values.empty() ? "" : ", ", name);
  }
  s += "  };\n";
  for (int member : functor.members) {
    s += cat("  const jf::", name(kernel.buffers[member].dtype), "* __restrict__ ", bodies.buffers[member], ";\n");
  }
  s += cat(function, "Row row(", row, ") const {\n", texts.of_row, "    return {", values, "};\n  }\n");
  s += cat(function, "float at(const Row& own, const float (&given)[kSums], ", row, ", ", texts.index_type, " ",
           texts.column, ") const {\n");
  s += one ? cat("    const f32 ", sums, " = {given[0]};\n")
           : cat("    const f32 ", sums, "[2] = {{given[0]}, {given[1]}};\n");
  s += cat("    f32 ", result, ";\n", texts.of_place, "    return ", result, ".v[0];\n  }\n};\n");
  return s;
}

}  // namespace jf::codegen
