// Memory on the CPU: how lanes get in and out. Floats of 8 and 16 bits are f32 in lanes, preds are bytes in memory.
#pragma once

#include "codegen/cpu_lanes.h"
#include "codegen/cpu_masks.h"
#include "codegen/float8.h"
#include "codegen/memory.h"

namespace jf {

// The lanes after those that are gone.
JF_FUNCTION All rest(All, int) { return {}; }
JF_FUNCTION Between rest(Between on, int gone) { return {on.first - gone, on.end - gone}; }
JF_FUNCTION First rest(First on, int gone) { return {on.count > gone ? on.count - gone : 0}; }

// What memory holds of a type.
template <class M>
struct StoredAs {
  using Type = M;
};
template <>
struct StoredAs<f16> {
  using Type = u16;
};
template <>
struct StoredAs<bf16> {
  using Type = u16;
};
template <>
struct StoredAs<f8e4m3fn> {
  using Type = u8;
};
template <>
struct StoredAs<f8e5m2> {
  using Type = u8;
};
template <>
struct StoredAs<pred> {
  using Type = u8;
};
template <class M>
using Stored = typename StoredAs<M>::Type;

#if !defined(__clang__) && defined(__AVX512BW__) && JF_PART == 16 && __has_builtin(__builtin_ia32_permvarhi512_mask)
// Each word becomes the upper half of a lane, in one permutation.
JF_FUNCTION Part<f32> decode(bf16, Part<u16> x) {
  typedef short Words32 __attribute__((vector_size(64)));
  typedef int Half __attribute__((vector_size(32)));
  constexpr Words32 kFrom = {0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                             0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
  const Words32 words = (Words32)__builtin_ia32_si512_256si((Half)x);
  return (Part<f32>)__builtin_ia32_permvarhi512_mask(words, kFrom, Words32{}, 0xaaaaaaaa);
}
#else
JF_FUNCTION Part<f32> decode(bf16, Part<u16> x) { return bits_as<f32>(value_as<u32>(x) << 16); }
#endif
JF_FUNCTION Part<u16> encode_exactly(bf16, Part<f32> x) {
  const Part<u32> bits = bits_as<u32>(x);
  const Part<u32> rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return value_as<u16>(x != x ? (bits >> 16) | 0x40 : rounded);
}
JF_FUNCTION Part<u16> encode(bf16, Part<f32> x) {
  // The instruction takes subnormal numbers, below 1e-38, for zero.
#if defined(__AVX512BF16__) && defined(__clang__)
  typedef __bf16 Short __attribute__((vector_size(2 * JF_PART)));
  return (Part<u16>)__builtin_convertvector(x, Short);
#elif defined(__AVX512BF16__) && JF_PART == 16
  return (Part<u16>)__builtin_ia32_cvtneps2bf16_v16sf(x);
#elif defined(__AVX512BF16__) && defined(__AVX512VL__) && JF_PART == 8
  return (Part<u16>)__builtin_ia32_cvtneps2bf16_v8sf(x);
#else
  return encode_exactly(bf16{}, x);
#endif
}

// Two parts as one vector of memory, where the machine has that in one instruction.
template <class M>
inline constexpr bool encodes_two = false;
// g++ 13 has renamed it.
#if !defined(__clang__) && defined(__AVX512BF16__) && JF_PART == 16
#if __has_builtin(__builtin_ia32_cvtne2ps2bf16_v32bf)
#define JF_ENCODE_TWO __builtin_ia32_cvtne2ps2bf16_v32bf
#elif __has_builtin(__builtin_ia32_cvtne2ps2bf16_v32hi)
#define JF_ENCODE_TWO __builtin_ia32_cvtne2ps2bf16_v32hi
#endif
#endif
#if defined(JF_ENCODE_TWO)
template <>
inline constexpr bool encodes_two<bf16> = true;
JF_FUNCTION auto encode_two(bf16, Part<f32> low, Part<f32> high) { return JF_ENCODE_TWO(high, low); }
#endif

JF_FUNCTION Part<f32> decode(f16, Part<u16> x) {
#if defined(__F16C__) && defined(__clang__)
  typedef _Float16 Half __attribute__((vector_size(2 * JF_PART)));
  return __builtin_convertvector((Half)x, Part<f32>);
#elif defined(__AVX512F__) && JF_PART == 16
  typedef short Half __attribute__((vector_size(32)));
  return __builtin_ia32_vcvtph2ps512_mask((Half)x, Part<f32>{}, -1, 4);
#elif defined(__F16C__) && JF_PART == 8
  typedef short Half __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps256((Half)x);
#else
  const Part<u32> bits = value_as<u32>(x), magnitude = (bits & 0x7fff) << 13;
  // The product rebases the exponent. Subnormal halves take a sum: XLA's threads read a subnormal f32 as zero.
  const Part<u32> normal = bits_as<u32>(bits_as<f32>(magnitude) * 0x1p112f);
  const Part<u32> subnormal = bits_as<u32>(bits_as<f32>(magnitude + (113u << 23)) - 0x1p-14f);
  const Part<u32> finite = magnitude < (1u << 23) ? subnormal : normal;
  return bits_as<f32>((magnitude >= (31u << 23) ? finite | 0x7f800000 : finite) | (bits & 0x8000) << 16);
#endif
}
JF_FUNCTION Part<u16> encode(f16, Part<f32> x) {
#if defined(__F16C__) && defined(__clang__)
  typedef _Float16 Half __attribute__((vector_size(2 * JF_PART)));
  return (Part<u16>)__builtin_convertvector(x, Half);
#elif defined(__AVX512F__) && JF_PART == 16
  typedef short Half __attribute__((vector_size(32)));
  return (Part<u16>)__builtin_ia32_vcvtps2ph512_mask(x, 0, Half{}, -1);
#elif defined(__F16C__) && JF_PART == 8
  return (Part<u16>)__builtin_ia32_vcvtps2ph256(x, 0);
#else
  const Part<u32> bits = bits_as<u32>(x), magnitude = bits & 0x7fffffff;
  const Part<u32> normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 puts the units of subnormal halves at the end of the word, and rounds.
  const Part<u32> subnormal = bits_as<u32>(bits_as<f32>(magnitude) + 0.5f) - 0x3f000000;
  Part<u32> half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000 ? Part<u32>{} + 0x7c00 : half;
  half = magnitude > 0x7f800000 ? (magnitude >> 13 & 0x3ff) | 0x7e00 : half;
  return value_as<u16>(half | (bits >> 16 & 0x8000));
#endif
}
JF_FUNCTION Part<u16> encode_exactly(f16, Part<f32> x) { return encode(f16{}, x); }

template <class M>
JF_FUNCTION Part<u8> encode_float8(M type, Part<f32> x) {
  const Part<u32> bits = bits_as<u32>(x);
  return value_as<u8>(float8_bits(type, bits, bits_as<u32>(bits_as<f32>(bits & 0x7fffffff) + small_of(type))));
}
JF_FUNCTION Part<u8> encode(f8e4m3fn type, Part<f32> x) { return encode_float8(type, x); }
JF_FUNCTION Part<u8> encode(f8e5m2 type, Part<f32> x) { return encode_float8(type, x); }
JF_FUNCTION Part<u8> encode_exactly(f8e4m3fn type, Part<f32> x) { return encode_float8(type, x); }
JF_FUNCTION Part<u8> encode_exactly(f8e5m2 type, Part<f32> x) { return encode_float8(type, x); }
JF_FUNCTION Part<f32> decode(f8e5m2, Part<u8> x) { return decode(f16{}, value_as<u16>(x) << 8); }
JF_FUNCTION Part<f32> decode(f8e4m3fn, Part<u8> x) {
  const Part<u16> bits = value_as<u16>(x), size = bits & 0x7f;
  const Part<u16> number = size == 0x7f ? Part<u16>{} + 0x7e00 : size << 7;
  return decode(f16{}, number | (bits & 0x80) << 8) * 256.0f;
}

JF_FUNCTION Part<pred> decode(pred, Part<u8> x) { return to_pred(x != 0); }
JF_FUNCTION Part<u8> encode(pred, Part<pred> x) { return value_as<u8>(x) & 1; }
template <class M>
JF_FUNCTION Part<M> decode(M, Part<M> x) {
  return x;
}
template <class M>
JF_FUNCTION Part<M> encode(M, Part<M> x) {
  return x;
}

// The numbers 0, 1, ..., n - 1 as a pack.
template <int... i>
struct Numbers {};
template <int n, int... i>
struct NumbersBelow : NumbersBelow<n - 1, n - 1, i...> {};
template <int... i>
struct NumbersBelow<0, i...> {
  using Type = Numbers<i...>;
};

template <class M>
JF_FUNCTION Stored<M> read_one(const M* p) {
  Stored<M> x;
  __builtin_memcpy(&x, p, sizeof(M));
  return x;
}
template <class M>
JF_FUNCTION void write_one(M* p, Stored<M> x) {
  __builtin_memcpy(p, &x, sizeof(M));
}
// A pack keeps the vector in registers; a loop over its lanes would go through the stack.
template <class M, int... i>
JF_FUNCTION Part<Stored<M>> read_lanes(const M* p, long stride, int count, Numbers<i...>) {
  return Part<Stored<M>>{(i < count ? read_one(p + i * stride) : Stored<M>(0))...};
}
template <class M, int... i>
JF_FUNCTION Part<Stored<M>> read_lanes(const M* p, long stride, Between on, Numbers<i...>) {
  return Part<Stored<M>>{(on.first <= i && i < on.end ? read_one(p + i * stride) : Stored<M>(0))...};
}
template <class M, int... i>
JF_FUNCTION void write_lanes(M* p, long stride, Part<Stored<M>> x, int count, Numbers<i...>) {
  ((i < count ? write_one(p + i * stride, x[i]) : void()), ...);
}

// The stride of neighbours, known at compile time.
struct One {
  JF_LAMBDA operator long() const { return 1; }
};

// A short one, known too.
template <int kSteps>
struct Apart {
  JF_LAMBDA operator long() const { return kSteps; }
};
// Backwards.
struct MinusOne {
  JF_LAMBDA operator long() const { return -1; }
};
template <class Stride>
inline constexpr int kApart = 0;
template <int kSteps>
inline constexpr int kApart<Apart<kSteps>> = kSteps;
// The wanted elements of vectors side by side. The last one ends with the last element that is wanted.
template <int kSteps, int kVector, class V, class E, int... l>
JF_FUNCTION V read_apart(const E* p, const V& before, Numbers<l...> lanes) {
  if constexpr (kVector == kSteps) {
    return before;
  } else {
    constexpr int kLast = (JF_PART - 1) * kSteps + 1 - JF_PART;
    constexpr int kFrom = kVector * JF_PART < kLast ? kVector * JF_PART : kLast;
    V next;
    __builtin_memcpy(&next, p + kFrom, sizeof(next));
    const V both =
        __builtin_shufflevector(before, next, (l * kSteps / JF_PART != kVector ? l : JF_PART + l * kSteps - kFrom)...);
    return read_apart<kSteps, kVector + 1>(p, both, lanes);
  }
}

template <class E, class V, int... l>
JF_FUNCTION V read_reversed(const E* p, V x, Numbers<l...>) {
  constexpr int kLast = sizeof...(l) - 1;
  __builtin_memcpy(&x, p - kLast, sizeof...(l) * sizeof(E));
  return __builtin_shufflevector(x, x, (kLast - l)...);
}

// Elements 0, stride, 2 * stride, ... of the active lanes; zero in the others.
template <int W, class M, class Stride, class On>
JF_FUNCTION Part<Stored<M>> read(const M* p, Stride stride, On on) {
  using Result = Part<Stored<M>>;
  constexpr bool kDense = is_same<Stride, One>;
  if constexpr (kDense && is_same<On, All>) {
    Result x{};
    __builtin_memcpy(&x, p, W * sizeof(M));
    return x;
  } else if constexpr (kDense && MaskedFor<Result, sizeof(M)>::kExists) {
    return read_first<Result, sizeof(M)>(p, active<W>(on));
  } else if constexpr (kApart<Stride> > 0 && W == JF_PART && is_same<On, All>) {
    return read_apart<kApart<Stride>, 0>((const Stored<M>*)p, Result{}, typename NumbersBelow<W>::Type{});
  } else if constexpr (is_same<Stride, MinusOne> && W == JF_PART && is_same<On, All>) {
    return read_reversed((const Stored<M>*)p, Result{}, typename NumbersBelow<W>::Type{});
  } else {
    return read_lanes(p, stride, active<W>(on), typename NumbersBelow<W>::Type{});
  }
}
template <int W, class M, class Stride>
JF_FUNCTION Part<Stored<M>> read(const M* p, Stride stride, Between on) {
  return read_lanes(p, stride, on, typename NumbersBelow<W>::Type{});
}
template <int W, class M, class Stride, class On>
JF_FUNCTION void write(M* p, Stride stride, Part<Stored<M>> x, On on) {
  constexpr bool kDense = is_same<Stride, One>;
  if constexpr (kDense && is_same<On, All>) {
    __builtin_memcpy(p, &x, W * sizeof(M));
  } else if constexpr (kDense && MaskedFor<decltype(x), sizeof(M)>::kExists) {
    write_first<sizeof(M)>(p, x, active<W>(on));
  } else {
    write_lanes(p, stride, x, active<W>(on), typename NumbersBelow<W>::Type{});
  }
}

// L is the Lanes type of the result. kMultiple: the offset is a multiple of it; of use where vector access must be
// aligned.
template <class T>
struct Type {};
template <class T, int W, class M, class Stride, class On>
JF_FUNCTION Lanes<T, W> load_strided(Type<Lanes<T, W>>, const M* p, Stride stride, On on) {
  if constexpr (W <= JF_PART) {
    return {decode(M{}, read<W>(p, stride, on))};
  } else {
    constexpr int kHalf = W / 2;
    return {load_strided(Type<Lanes<T, kHalf>>{}, p, stride, on),
            load_strided(Type<Lanes<T, kHalf>>{}, p + kHalf * stride, stride, rest(on, kHalf))};
  }
}
template <class M, class T, int W, class Stride, class On>
JF_FUNCTION void store_strided(M* p, Stride stride, Lanes<T, W> x, On on) {
  if constexpr (W <= JF_PART) {
    write<W>(p, stride, encode(M{}, x.v), on);
  } else if constexpr (W == 2 * JF_PART && encodes_two<M> && is_same<Stride, One> && is_same<On, All>) {
    const auto both = encode_two(M{}, x.lo.v, x.hi.v);
    __builtin_memcpy(p, &both, sizeof(both));
  } else {
    store_strided(p, stride, x.lo, on);
    store_strided(p + W / 2 * stride, stride, x.hi, rest(on, W / 2));
  }
}
template <class T, int W>
JF_FUNCTION Lanes<T, W> broadcast_part(Type<Lanes<T, W>>, Part<T> x) {
  if constexpr (W <= JF_PART) {
    return {x};
  } else {
    return {broadcast_part(Type<Lanes<T, W / 2>>{}, x), broadcast_part(Type<Lanes<T, W / 2>>{}, x)};
  }
}

template <class L, int kMultiple = 1, class M, class On = All>
JF_FUNCTION L load(const M* p, long offset, On on = {}) {
  return load_strided(Type<L>{}, p + offset, One{}, on);
}
template <class L, int kMultiple = 1, class M, class On = All>
JF_FUNCTION L load_reversed(const M* p, long offset, On on = {}) {
  return load_strided(Type<L>{}, p + offset, MinusOne{}, on);
}
template <class L, class M, class On = All>
JF_FUNCTION L gather(const M* p, long offset, long stride, On on = {}) {
  if (stride == 2) return load_strided(Type<L>{}, p + offset, Apart<2>{}, on);
  if (stride == 3) return load_strided(Type<L>{}, p + offset, Apart<3>{}, on);
  if (stride == 4) return load_strided(Type<L>{}, p + offset, Apart<4>{}, on);
  return load_strided(Type<L>{}, p + offset, stride, on);
}
// Lanes along rows, of which there are `more` behind that of lane 0: later lanes have the last one.
template <int W, class M, int... i>
JF_FUNCTION Part<Stored<M>> read_rows(const M* p, long stride, long more, int count, Numbers<i...>) {
  return Part<Stored<M>>{(i < count ? read_one(p + (i < more ? i : more) * stride) : Stored<M>(0))...};
}
template <class T, int W, class M, class On>
JF_FUNCTION Lanes<T, W> load_last_rows(Type<Lanes<T, W>>, const M* p, long stride, long more, On on) {
  if constexpr (W <= JF_PART) {
    return {decode(M{}, read_rows<W>(p, stride, more > 0 ? more : 0, active<W>(on), typename NumbersBelow<W>::Type{}))};
  } else {
    constexpr int kHalf = W / 2;
    const long gone = more < kHalf ? (more > 0 ? more : 0) : kHalf;
    return {load_last_rows(Type<Lanes<T, kHalf>>{}, p, stride, more, on),
            load_last_rows(Type<Lanes<T, kHalf>>{}, p + gone * stride, stride, more - kHalf, rest(on, kHalf))};
  }
}
template <class L, class T, int W, class M, class Stride, class On>
JF_FUNCTION L load_rows_of(Type<Lanes<T, W>>, const M* p, Stride stride, long more, On on) {
  if (more >= W - 1) return load_strided(Type<L>{}, p, stride, on);
  return load_last_rows(Type<L>{}, p, stride, more, on);
}
template <class L, class M, class Stride, class On = All>
JF_FUNCTION L load_rows(const M* p, long offset, Stride stride, long more, On on = {}) {
  return load_rows_of<L>(Type<L>{}, p + offset, stride, more, on);
}
// Lanes whose index is from `begin` on, below `end`; lane 0 has `index`.
template <class L, int kMultiple, class M, class Stride, class T, int W, class On>
JF_FUNCTION L load_within_lanes(Type<Lanes<T, W>>, const M* p, Stride stride, long index, long begin, long end, On on) {
  if (begin <= index && index <= end - W) return load_strided(Type<L>{}, p, stride, on);
  return load_strided(Type<L>{}, p, stride, between<W>(index, begin, end, on));
}
template <class L, int kMultiple = 1, class M, class Stride, class On = All>
JF_FUNCTION L load_within(const M* p, long offset, Stride stride, long index, long begin, long end, On on = {}) {
  return load_within_lanes<L, kMultiple>(Type<L>{}, p + offset, stride, index, begin, end, on);
}
template <class T, int W>
JF_FUNCTION long step(Lanes<T, W> x, long limit, long weight) {
  if constexpr (W <= JF_PART) {
    return step_of(x.v[0], limit, weight);
  } else {
    return step(x.lo, limit, weight);
  }
}
// Of a condition that is the same in all lanes.
template <int W>
JF_FUNCTION bool first(const Lanes<pred, W>& x) {
  if constexpr (W <= JF_PART) {
    return x.v[0] != 0;
  } else {
    return first(x.lo);
  }
}
// Steps of `weight`, x of them; all places at once are s64 lanes, which take more to compare than those of x.
template <class T, int W>
struct Steps {
  Lanes<T, W> x;
  long limit, weight;
};
template <class T, int W>
JF_FUNCTION Steps<T, W> steps(Lanes<T, W> x, long limit, long weight) {
  return {x, limit, weight};
}
template <class T, int W>
JF_FUNCTION Lanes<s64, W> places(const Steps<T, W>& at) {
  if constexpr (W > JF_PART) {
    return {places(Steps<T, W / 2>{at.x.lo, at.limit, at.weight}),
            places(Steps<T, W / 2>{at.x.hi, at.limit, at.weight})};
  } else if constexpr (is_signed<T>) {
    const Part<s64> x = value_as<s64>(at.x.v), zero{}, last = splat(s64(at.limit));
    const Part<s64> from = x < zero ? zero : x;
    return {(from > last ? last : from) * splat(s64(at.weight))};
  } else {
    const Part<u64> x = value_as<u64>(at.x.v), last = splat(u64(at.limit));
    return {value_as<s64>(x > last ? last : x) * splat(s64(at.weight))};
  }
}
template <class A, class B, int W>
JF_FUNCTION Lanes<s64, W> add(const Steps<A, W>& a, const Steps<B, W>& b) {
  return add(places(a), places(b));
}
template <class B, int W>
JF_FUNCTION Lanes<s64, W> add(const Lanes<s64, W>& a, const Steps<B, W>& b) {
  return add(a, places(b));
}
template <class M, int... i>
JF_FUNCTION Part<Stored<M>> read_at(const M* p, long stride, Part<s64> at, int count, Numbers<i...>) {
  return Part<Stored<M>>{(i < count ? read_one(p + i * stride + at[i]) : Stored<M>(0))...};
}
template <class V>
JF_FUNCTION bool all_same(const V& x) {
  const V first = x[0] - V{};
  if constexpr (sizeof(V) == sizeof(Part<s32>)) {
    return !any(bits_as<s32>(x != first));
  } else if constexpr (sizeof(V) % sizeof(u64) != 0) {
    return false;
  } else {
    const V differs = x ^ first;
    u64 words[sizeof(V) / sizeof(u64)], any = 0;
    __builtin_memcpy(words, &differs, sizeof(differs));
    for (u64 word : words) any |= word;
    return any == 0;
  }
}
// Each lane from its own place, which is often that of the others: rows beside each other are of one group.
template <class R, int W, class M, class T, class On>
JF_FUNCTION Lanes<R, W> load_lanes_at(Type<Lanes<R, W>>, const M* p, long stride, const Steps<T, W>& at, On on) {
  if constexpr (W == JF_PART && is_same<On, All>) {
    if (stride == 0 && all_same(at.x.v)) {
      return {decode(M{}, splat(read_one(p + step_of(at.x.v[0], at.limit, at.weight))))};
    }
  }
  if constexpr (W <= JF_PART) {
    return {decode(M{}, read_at(p, stride, places(at).v, active<W>(on), typename NumbersBelow<W>::Type{}))};
  } else {
    constexpr int kHalf = W / 2;
    using Half = Steps<T, kHalf>;
    return {load_lanes_at(Type<Lanes<R, kHalf>>{}, p, stride, Half{at.x.lo, at.limit, at.weight}, on),
            load_lanes_at(Type<Lanes<R, kHalf>>{}, p + kHalf * stride, stride, Half{at.x.hi, at.limit, at.weight},
                          rest(on, kHalf))};
  }
}
template <class L, class M, class T, int W, class On = All>
JF_FUNCTION L load_at(const M* p, long offset, long stride, const Steps<T, W>& at, On on = {}) {
  return load_lanes_at(Type<L>{}, p + offset, stride, at, on);
}
template <class L, class M, int W, class On = All>
JF_FUNCTION L load_at(const M* p, long offset, long stride, const Lanes<s64, W>& at, On on = {}) {
  return load_lanes_at(Type<L>{}, p + offset, stride, steps(at, long(~0ul >> 1), 1), on);
}
// One element in all lanes.
template <class L, class M>
JF_FUNCTION L load_splat(const M* p, long offset) {
  return broadcast_part(Type<L>{}, decode(M{}, splat(read_one(p + offset))));
}
template <int kMultiple = 1, class M, class T, int W, class On = All>
JF_FUNCTION void store(M* p, long offset, Lanes<T, W> x, On on = {}) {
  store_strided(p + offset, One{}, x, on);
}
template <class M, class T, int W, class On = All>
JF_FUNCTION void scatter(M* p, long offset, long stride, Lanes<T, W> x, On on = {}) {
  store_strided(p + offset, stride, x, on);
}
// Lanes along rows, of which there are `more` behind that of lane 0: later lanes store nothing.
template <class M, class T, int W, class On = All>
JF_FUNCTION void store_rows(M* p, long offset, long more, Lanes<T, W> x, On on = {}) {
  if (more >= W - 1) return store_strided(p + offset, One{}, x, on);
  const int count = active<W>(on);
  store_strided(p + offset, One{}, x, First{more + 1 < count ? int(more) + 1 : count});
}
// The first lane alone.
template <class M, class T, int W>
JF_FUNCTION void store_first(M* p, long offset, Lanes<T, W> x) {
  if constexpr (W <= JF_PART) {
    write<1>(p + offset, One{}, encode(M{}, x.v), All{});
  } else {
    store_first(p, offset, x.lo);
  }
}

template <class T, int W>
JF_FUNCTION Lanes<T, W> from_index_at(Type<Lanes<T, W>>, long base, long stride) {
  if constexpr (W <= JF_PART) {
    if constexpr (is_float<T>) {
      Part<T> x{};
      for (int i = 0; i < W; ++i) x[i] = T(base + i * stride);
      return {x};
    } else {
      Part<T> lane{};
      for (int i = 0; i < W; ++i) lane[i] = i;
      return {splat(T(base)) + lane * splat(T(stride))};
    }
  } else {
    return {from_index_at(Type<Lanes<T, W / 2>>{}, base, stride),
            from_index_at(Type<Lanes<T, W / 2>>{}, base + W / 2 * stride, stride)};
  }
}
template <class L>
JF_FUNCTION L from_index(long base, long stride) {
  return from_index_at(Type<L>{}, base, stride);
}

template <class T, int W, class V>
JF_FUNCTION Lanes<T, W> constant_lanes(Type<Lanes<T, W>> type, V value) {
  if constexpr (is_same<T, pred>) {
    const Mask mask = value != 0 ? -1 : 0;
    return broadcast_part(type, Part<pred>{} + mask);
  } else {
    return broadcast_part(type, splat(T(value)));
  }
}
template <class L, class V>
JF_FUNCTION L constant(V value) {
  return constant_lanes(Type<L>{}, value);
}

}  // namespace jf
