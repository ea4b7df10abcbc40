// Lanes on CUDA: W values of one type in registers of one thread, and how they get in and out of memory. Floats of 8
// and 16 bits are f32 in lanes. The names are those of the CPU prelude.
#pragma once

#include "codegen/float16.cuh"
#include "codegen/ptx_convert.cuh"

#define JF_FUNCTION static __device__ __forceinline__
#define JF_LAMBDA

#include "codegen/float8.h"

namespace jf {

using pred = bool;
using s8 = signed char;
using s16 = short;
using s32 = int;
using s64 = long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;
using f32 = float;
using f64 = double;
// In place of a dtype: f32 of which a few bits may be wrong.
struct Loose {};

template <class T, int W>
struct Lanes {
  T v[W];
};

// Facts about types that the standard headers would give.
template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;
template <class T>
inline constexpr bool is_float = is_same<T, f32> || is_same<T, f64>;
// Floats that are f32 in lanes.
template <class M>
inline constexpr bool is_short = is_same<M, f16> || is_same<M, bf16> || is_same<M, f8e4m3fn> || is_same<M, f8e5m2>;
template <class T>
inline constexpr bool is_signed = T(-1) < T(0);
template <int kBytes>
struct IntegerOf;
template <>
struct IntegerOf<1> {
  using Signed = s8;
  using Unsigned = u8;
};
template <>
struct IntegerOf<2> {
  using Signed = s16;
  using Unsigned = u16;
};
template <>
struct IntegerOf<4> {
  using Signed = s32;
  using Unsigned = u32;
};
template <>
struct IntegerOf<8> {
  using Signed = s64;
  using Unsigned = u64;
};
template <class T>
using Signed = typename IntegerOf<sizeof(T)>::Signed;
template <class T>
using Unsigned = typename IntegerOf<sizeof(T)>::Unsigned;
template <class T>
inline constexpr T kSmallest = is_signed<T> ? T(Unsigned<T>(1) << (8 * sizeof(T) - 1)) : T(0);
template <class T>
inline constexpr T kLargest = T(~kSmallest<T>);

constexpr double kInfinity = __builtin_bit_cast(double, 0x7ff0000000000000);
constexpr double kNaN = __builtin_bit_cast(double, 0x7ff8000000000000);

// Applies f to the lanes.
template <class R, class F, class T, int W, class... More>
JF_FUNCTION Lanes<R, W> map(F f, const Lanes<T, W>& a, const More&... more) {
  Lanes<R, W> result;
#pragma unroll
  for (int i = 0; i < W; ++i) result.v[i] = f(a.v[i], more.v[i]...);
  return result;
}

// The same bits as another type of the same size.
template <class To, class From>
JF_FUNCTION To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "the same bits need the same size");
  To result;
  memcpy(&result, &x, sizeof(x));
  return result;
}

// Two codes of four bits: arrays of them are only stored, see store.
struct u4 {
  u8 pair;
};

// The lane type of a dtype, what memory holds of it, and two short floats in one word.
template <class M>
struct TypesOf {
  using Compute = M;
  using Stored = M;
};
template <>
struct TypesOf<f16> {
  using Compute = f32;
  using Stored = u16;
  using Pair = u32;
};
template <>
struct TypesOf<bf16> {
  using Compute = f32;
  using Stored = u16;
  using Pair = u32;
};
template <>
struct TypesOf<f8e4m3fn> {
  using Compute = f32;
  using Stored = u8;
  using Pair = u16;
};
template <>
struct TypesOf<f8e5m2> {
  using Compute = f32;
  using Stored = u8;
  using Pair = u16;
};
template <>
struct TypesOf<u4> {
  using Compute = u32;
};
template <>
struct TypesOf<pred> {
  using Compute = pred;
  using Stored = u8;
};
template <class M>
using Compute = typename TypesOf<M>::Compute;
template <class M>
using Stored = typename TypesOf<M>::Stored;
template <class M>
using Pair = typename TypesOf<M>::Pair;

JF_FUNCTION f32 decode(f16, u16 x) { return ptx::f32_from_f16(x); }
JF_FUNCTION f32 decode(bf16, u16 x) { return bits_as<f32>(u32(x) << 16); }
JF_FUNCTION pred decode(pred, u8 x) { return x != 0; }
template <class M>
JF_FUNCTION M decode(M, M x) {
  return x;
}
JF_FUNCTION u16 encode(f16, f32 x) { return ptx::f16_from_f32(x); }
JF_FUNCTION u16 encode(bf16, f32 x) { return ptx::bf16_from_f32(x); }
JF_FUNCTION u32 encode_pair(f16, f32 x, f32 y) { return ptx::f16x2_from_f32(x, y); }
JF_FUNCTION u32 encode_pair(bf16, f32 x, f32 y) { return ptx::bf16x2_from_f32(x, y); }
#if __CUDA_ARCH__ >= 890
JF_FUNCTION u16 encode_pair(f8e4m3fn, f32 x, f32 y) { return ptx::e4m3x2_from_f32(x, y); }
JF_FUNCTION u16 encode_pair(f8e5m2, f32 x, f32 y) { return ptx::e5m2x2_from_f32(x, y); }
#else
template <class M>
JF_FUNCTION u16 encode_pair(M type, f32 x, f32 y) {
  const auto bits = [=](f32 x) { return float8_bits(type, bits_as<u32>(x), bits_as<u32>(fabsf(x) + small_of(type))); };
  return u16(bits(x) | bits(y) << 8);
}
#endif
JF_FUNCTION u8 encode(f8e4m3fn type, f32 x) { return u8(encode_pair(type, x, 0)); }
JF_FUNCTION u8 encode(f8e5m2 type, f32 x) { return u8(encode_pair(type, x, 0)); }
JF_FUNCTION u8 encode(pred, pred x) { return x; }
template <class M>
JF_FUNCTION M encode(M, M x) {
  return x;
}
// One half of two elements in a word.
JF_FUNCTION f32 decode_low(f16, u32 pair) { return ptx::f32_from_f16(u16(pair)); }
JF_FUNCTION f32 decode_high(f16, u32 pair) { return ptx::f32_from_f16(u16(pair >> 16)); }
JF_FUNCTION f32 decode_low(bf16, u32 pair) { return bits_as<f32>(pair << 16); }
JF_FUNCTION f32 decode_high(bf16, u32 pair) { return bits_as<f32>(pair & 0xffff0000u); }

// An e4m3 number is a f16 of 2^-8 of its size.
JF_FUNCTION f32 decode(f8e5m2, u8 x) { return ptx::f32_from_f16(u16(x << 8)); }
JF_FUNCTION f32 decode(f8e4m3fn, u8 x) {
  const u32 size = x & 0x7f, number = size == 0x7f ? 0x7e00 : size << 7;
  return ptx::f32_from_f16(u16(number | (x & 0x80) << 8)) * 256;
}
template <class M>
JF_FUNCTION f32 decode_low(M type, u16 pair) {
  return decode(type, u8(pair));
}
template <class M>
JF_FUNCTION f32 decode_high(M type, u16 pair) {
  return decode(type, u8(pair >> 8));
}

// Lanes that were loaded as bf16, in half the registers.
template <int W>
struct Packed {
  u32 v[W / 2];
};
template <int W>
JF_FUNCTION Packed<W> pack(const Lanes<f32, W>& x) {
  Packed<W> result;
#pragma unroll
  for (int i = 0; i < W; i += 2) {
    result.v[i / 2] = (bits_as<u32>(x.v[i]) >> 16) | (bits_as<u32>(x.v[i + 1]) & 0xffff0000u);
  }
  return result;
}
// As f32 again. A compiler that knew these values from elsewhere would keep them beside or instead of the pairs, so
// each place that asks for them has another kForm.
constexpr int kForms = 3;
template <int kPlace, int W>
JF_FUNCTION Lanes<f32, W> unpack(const Packed<W>& x) {
  Lanes<f32, W> result;
#pragma unroll
  for (int i = 0; i < W; i += 2) {
    u32 low, high;
    ptx::take_halves<kPlace % kForms>(x.v[i / 2], low, high);
    result.v[i] = bits_as<f32>(low);
    result.v[i + 1] = bits_as<f32>(high);
  }
  return result;
}

}  // namespace jf
