#include "codegen/dtype_arguments.h"

#include "base/error.h"

namespace jf::codegen {
namespace {

std::string type(DType dtype) { return cat("jf::", name(dtype)); }

// Functions that need fewer digits for a bf16, and in float32 for what is rounded to 16 bits.
bool has_short_form(ir::OpKind op) {
  using ir::OpKind;
  return op == OpKind::kExp || op == OpKind::kTanh || op == OpKind::kLogistic || op == OpKind::kErf ||
         op == OpKind::kErfc || op == OpKind::kLog1p;
}

}  // namespace

std::string dtype_arguments(const loops::Compute& compute, DType result) {
  if (result == DType::kBF16 && has_short_form(compute.op)) return cat("<", type(result), ">");
  if (result == DType::kF32 && has_short_form(compute.op) && compute.loose) return "<jf::Loose>";
  if (compute.op == ir::OpKind::kConvert || compute.op == ir::OpKind::kNextAfter) return cat("<", type(result), ">");
  if (compute.op == ir::OpKind::kBitcast) return cat("<", type(result), ", ", type(compute.from), ">");
  return "";
}

}  // namespace jf::codegen
