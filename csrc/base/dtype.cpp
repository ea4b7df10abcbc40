#include "base/dtype.h"

#include <array>

#include "base/error.h"

namespace jf {
namespace {

enum class Class : uint8_t { kBool, kSigned, kUnsigned, kFloat };

struct Row {
  std::string_view name;
  int64_t size;
  Class kind;
};

// In the order of DType.
constexpr std::array<Row, 16> kRows = {{{"pred", 1, Class::kBool},
                                        {"s8", 1, Class::kSigned},
                                        {"s16", 2, Class::kSigned},
                                        {"s32", 4, Class::kSigned},
                                        {"s64", 8, Class::kSigned},
                                        {"u8", 1, Class::kUnsigned},
                                        {"u16", 2, Class::kUnsigned},
                                        {"u32", 4, Class::kUnsigned},
                                        {"u64", 8, Class::kUnsigned},
                                        {"f16", 2, Class::kFloat},
                                        {"bf16", 2, Class::kFloat},
                                        {"f32", 4, Class::kFloat},
                                        {"f64", 8, Class::kFloat},
                                        {"f8e4m3fn", 1, Class::kFloat},
                                        {"f8e5m2", 1, Class::kFloat},
                                        {"u4", 1, Class::kUnsigned}}};

const Row& row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view name(DType dtype) { return row(dtype).name; }

DType parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  throw UserError(cat("[parse] unknown dtype '", name,
                      "'; expected one of pred, s8..s64, u4, u8..u64, f16, bf16, f32, f64, f8e4m3fn, f8e5m2"));
}

int64_t size_of(DType dtype) { return row(dtype).size; }
int64_t bytes_of(DType dtype, int64_t elements) {
  return dtype == DType::kU4 ? elements / 2 : elements * size_of(dtype);
}
bool is_float8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }
bool is_float(DType dtype) { return row(dtype).kind == Class::kFloat; }
bool is_integer(DType dtype) { return row(dtype).kind == Class::kSigned || row(dtype).kind == Class::kUnsigned; }
DType compute_dtype(DType dtype) {
  if (dtype == DType::kU4) return DType::kU32;
  return is_float(dtype) && size_of(dtype) < 4 ? DType::kF32 : dtype;
}

}  // namespace jf
