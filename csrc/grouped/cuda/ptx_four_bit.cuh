// PTX of the kernel with weights of four bits: products of pairs of bf16, and warpgroup products whose first operand
// lies in registers, d[64, n] += a[64, 16] * b[16, n], bf16.
//
// A thread holds the four words of `a` that mma_m16n8k16 takes: rows lane / 4 and 8 further of its warp's sixteen,
// contraction indices lane % 4 * 2 and the next, then the same 8 indices further. b lies in shared memory, K-major. The
// words may change only when the product has been waited for.
#pragma once

#include "grouped/cuda/ptx_hopper.cuh"

namespace jf::ptx {

// Both halves by one half of b: the instruction chooses it, where the compiler sees that it is one.
__device__ __forceinline__ unsigned mul_bf16x2_low(unsigned a, unsigned b) {
  unsigned product;
  asm("{.reg .b16 low, high; .reg .b32 twice; mov.b32 {low, high}, %2; mov.b32 twice, {low, low}; "
      "mul.rn.bf16x2 %0, %1, twice;}"
      : "=r"(product)
      : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ unsigned mul_bf16x2_high(unsigned a, unsigned b) {
  unsigned product;
  asm("{.reg .b16 low, high; .reg .b32 twice; mov.b32 {low, high}, %2; mov.b32 twice, {high, high}; "
      "mul.rn.bf16x2 %0, %1, twice;}"
      : "=r"(product)
      : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ unsigned mul_bf16x2(unsigned a, unsigned b) {
  unsigned product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
// Both halves by one half of b, and one of c more.
__device__ __forceinline__ unsigned fma_bf16x2_low(unsigned a, unsigned b, unsigned c) {
  unsigned sum;
  asm("{.reg .b16 low, high; .reg .b32 twice, more; mov.b32 {low, high}, %2; mov.b32 twice, {low, low}; "
      "mov.b32 {low, high}, %3; mov.b32 more, {low, low}; fma.rn.bf16x2 %0, %1, twice, more;}"
      : "=r"(sum)
      : "r"(a), "r"(b), "r"(c));
  return sum;
}
__device__ __forceinline__ unsigned fma_bf16x2_high(unsigned a, unsigned b, unsigned c) {
  unsigned sum;
  asm("{.reg .b16 low, high; .reg .b32 twice, more; mov.b32 {low, high}, %2; mov.b32 twice, {high, high}; "
      "mov.b32 {low, high}, %3; mov.b32 more, {high, high}; fma.rn.bf16x2 %0, %1, twice, more;}"
      : "=r"(sum)
      : "r"(a), "r"(b), "r"(c));
  return sum;
}
// A matrix of 8 by 8 pairs' halves, a row to four lanes, turned.
__device__ __forceinline__ unsigned turn_8x8(unsigned pair) {
  unsigned turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}
__device__ __forceinline__ void ld_shared(unsigned address, unsigned (&words)[1]) { words[0] = ld_shared(address); }
__device__ __forceinline__ void ld_shared(unsigned address, unsigned (&words)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address) : "memory");
}

// The description of an operand that others are sums of: 16 bytes further is one more. Its upper half is the same for
// all; a compiler that knew so would move it into a register before every product. Loops of one kernel have bases of
// their own: one in the registers of another loop may not be where a sum of 64 bits is one instruction.
template <bool kOther = false>
__device__ __forceinline__ unsigned long long wgmma_base(unsigned operand) {
  return wgmma_description(operand) + (static_cast<unsigned long long>((kOther ? gridDim.y : gridDim.z) - 1) << 32);
}

// `b` is a description. The numbers name the operands behind the sums.
template <int kColumns>
struct WgmmaRegisters;

#define JF_WGMMA_REGISTERS(COLUMNS, SUMS, A0, A1, A2, A3, B, ADD)                                               \
  template <>                                                                                                   \
  struct WgmmaRegisters<COLUMNS> {                                                                              \
    template <int kSize>                                                                                        \
    static __device__ __forceinline__ void run(float (&sums)[kSize], const unsigned* a, unsigned long long b,   \
                                               int add) {                                                       \
      static_assert(kSize >= SUMS, "the sums of a thread are half as many as columns");                         \
      asm volatile("{.reg .pred add; setp.ne.b32 add, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS \
                   "k16.f32.bf16.bf16 {" JF_NAMES_##SUMS "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B    \
                                                         ", add, 1, 1, 0;}"                                     \
                   : JF_SUMS_##SUMS(sums)                                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)                               \
                   : "memory");                                                                                 \
    }                                                                                                           \
  };

JF_WGMMA_REGISTERS(8, 4, 4, 5, 6, 7, 8, 9)
JF_WGMMA_REGISTERS(16, 8, 8, 9, 10, 11, 12, 13)
JF_WGMMA_REGISTERS(32, 16, 16, 17, 18, 19, 20, 21)
JF_WGMMA_REGISTERS(64, 32, 32, 33, 34, 35, 36, 37)
JF_WGMMA_REGISTERS(96, 48, 48, 49, 50, 51, 52, 53)
JF_WGMMA_REGISTERS(128, 64, 64, 65, 66, 67, 68, 69)
JF_WGMMA_REGISTERS(160, 80, 80, 81, 82, 83, 84, 85)
JF_WGMMA_REGISTERS(192, 96, 96, 97, 98, 99, 100, 101)
JF_WGMMA_REGISTERS(224, 112, 112, 113, 114, 115, 116, 117)
JF_WGMMA_REGISTERS(256, 128, 128, 129, 130, 131, 132, 133)

#undef JF_WGMMA_REGISTERS

}  // namespace jf::ptx
