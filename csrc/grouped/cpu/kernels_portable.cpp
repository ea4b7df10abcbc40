// Any CPU: 16-byte vectors that the compiler maps to what it has; tiles of 6 x 8 f32, 6 x 4 f64. Also the only integer
// kernels: integers are widened to 64 bits while they are packed, multiplied modulo 2^64 and cut to the result's width.
#include <cstdint>
#include <cstring>

namespace jf::grouped::cpu {
namespace {

struct Machine {
  static constexpr int kVectorBytes = 16;
  static constexpr int kTileRows = 6;

  typedef float Floats __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
  typedef uint16_t HalfBits __attribute__((vector_size(8)));

  static Floats load_f16(const void* from) {
    HalfBits half;
    std::memcpy(&half, from, sizeof(half));
    const Bits bits = __builtin_convertvector(half, Bits);
    const Bits magnitude = (bits & 0x7fffu) << 13;
    const Bits exponent = magnitude & 0x0f800000u;
    const Bits normal = magnitude + (112u << 23) + (Bits)((exponent == 0x0f800000u) & (112 << 23));
    // Below the normal range: adding 2^-14 normalizes, subtracting it leaves the value, with no subnormal f32 on the
    // way.
    const Floats tiny = (Floats)(magnitude + (113u << 23)) - 0x1p-14f;
    return (Floats)((exponent == 0u ? (Bits)tiny : normal) | (bits & 0x8000u) << 16);
  }

  static HalfBits convert_f16(Floats value) {
    const Bits sign = (Bits)value & 0x80000000u;
    const Bits bits = (Bits)value ^ sign;
    const Bits special = (Bits)(bits > 0x7f800000u) & 0x0200u;
    const Bits large = special | 0x7c00u;
    // 0.5 has 2^-24, the last place of a subnormal f16, as its last place: the addition rounds.
    const Bits tiny = (Bits)((Floats)bits + 0.5f) - 0x3f000000u;
    const Bits normal = (bits + 0xc8000fffu + ((bits >> 13) & 1u)) >> 13;
    const Bits half = bits >= (143u << 23) ? large : bits < (113u << 23) ? tiny : normal;
    return __builtin_convertvector(half | sign >> 16, HalfBits);
  }

  template <class V>
  static void stream(void* to, V value) {
    std::memcpy(to, &value, sizeof(V));
  }
  static void fence() {}
};

}  // namespace
}  // namespace jf::grouped::cpu

// After Machine:
#include "grouped/cpu/kernel_of.h"

namespace jf::grouped::cpu {
namespace {

template <class In>
const Kernel* integer_kernel_into(DType out) {
  using Op = FmaOp<uint64_t>;
  switch (size_of(out)) {
    case 1: return &kKernel<Op, In, uint8_t>;
    case 2: return &kKernel<Op, In, uint16_t>;
    case 4: return &kKernel<Op, In, uint32_t>;
    default: return &kKernel<Op, In, uint64_t>;
  }
}

const Kernel* integer_kernel(DType in, DType out) {
  switch (in) {
    case DType::kS8: return integer_kernel_into<int8_t>(out);
    case DType::kS16: return integer_kernel_into<int16_t>(out);
    case DType::kS32: return integer_kernel_into<int32_t>(out);
    case DType::kS64: return integer_kernel_into<int64_t>(out);
    case DType::kU8: return integer_kernel_into<uint8_t>(out);
    case DType::kU16: return integer_kernel_into<uint16_t>(out);
    case DType::kU32: return integer_kernel_into<uint32_t>(out);
    case DType::kU64: return integer_kernel_into<uint64_t>(out);
    default: return nullptr;
  }
}

}  // namespace

const Kernel* portable_kernel(DType in, DType out) {
  return is_integer(in) && is_integer(out) ? integer_kernel(in, out) : fma_kernel(in, out);
}

}  // namespace jf::grouped::cpu
