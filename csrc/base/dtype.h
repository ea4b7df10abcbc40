// Element types, with the names that StableHLO and the text forms use.
#pragma once

#include <cstdint>
#include <string_view>

namespace jf {

enum class DType : uint8_t {
  kPred,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  // Codes of four bits, two to a byte, the first in the low half: only what a kernel stores, of an even last axis.
  kU4
};

// "f32", "bf16", "pred", "s32", ...
std::string_view name(DType dtype);
// Throws UserError for a name that is not in the enum.
DType parse_dtype(std::string_view name);
// Bytes of one element in memory; pred takes one byte. Of u4 those of two.
int64_t size_of(DType dtype);
// Of an array.
int64_t bytes_of(DType dtype, int64_t elements);
bool is_float(DType dtype);
// The 8-bit floats: operands of scaled grouped products, and what fused kernels convert from and to.
bool is_float8(DType dtype);
bool is_integer(DType dtype);  // signed or unsigned, not pred
// The type that arithmetic runs in: f32 for floats of 8 and 16 bits, u32 for u4, otherwise the type itself.
DType compute_dtype(DType dtype);

}  // namespace jf
