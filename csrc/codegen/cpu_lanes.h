// Lanes on the CPU: W values of one type, held as machine vectors of JF_PART lanes each, so that every type of a kernel
// has equally many lanes in a part and a conversion never crosses parts. Includes nothing: system headers cost more
// than the kernel.
#pragma once

#ifndef JF_PART
#error "define JF_PART, the lanes of one machine vector, before including this header"
#endif
// The lanes of a pred: as wide as the widest others of a kernel, so that masks go with them, but not wider than f32.
#ifndef JF_PRED
#define JF_PRED s32
#endif

#if defined(__GNUC__) && !defined(__clang__)
// Nothing here is called across a library boundary.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define JF_FUNCTION static inline __attribute__((always_inline))
#define JF_LAMBDA __attribute__((always_inline))
#define JF_UNROLL _Pragma("GCC unroll 16")

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
struct f16 {
  u16 bits;
};
// In place of a dtype: f32 of which a few bits may be wrong.
struct Loose {};
struct bf16 {
  u16 bits;
};

// A pred is a mask, 0 or -1.
using Mask = JF_PRED;
// The machine vector of a lane type.
template <class T>
struct PartOf;
#define JF_PART_OF(T, E)                                              \
  template <>                                                         \
  struct PartOf<T> {                                                  \
    typedef E Type __attribute__((vector_size(JF_PART * sizeof(E)))); \
  };
JF_PART_OF(pred, Mask)
JF_PART_OF(s8, s8)
JF_PART_OF(s16, s16)
JF_PART_OF(s32, s32)
JF_PART_OF(s64, s64)
JF_PART_OF(u8, u8)
JF_PART_OF(u16, u16)
JF_PART_OF(u32, u32)
JF_PART_OF(u64, u64)
JF_PART_OF(f32, f32)
JF_PART_OF(f64, f64)
#undef JF_PART_OF
template <class T>
using Part = typename PartOf<T>::Type;

template <class T, int W, bool kOnePart = (W <= JF_PART)>
struct Lanes {
  Part<T> v;  // lanes past W are without meaning
};
template <class T, int W>
struct Lanes<T, W, false> {
  Lanes<T, W / 2> lo, hi;
};

// Facts about types that the standard headers would give.
template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;
template <class T>
inline constexpr bool is_float = is_same<T, f32> || is_same<T, f64>;
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
// What numbers the lanes of a part of T.
template <class T>
struct LaneNumberOf {
  using Type = Signed<T>;
};
template <>
struct LaneNumberOf<pred> {
  using Type = Mask;
};
template <class T>
using LaneNumber = typename LaneNumberOf<T>::Type;

template <class T>
inline constexpr T kSmallest = is_signed<T> ? T(Unsigned<T>(1) << (8 * sizeof(T) - 1)) : T(0);
template <class T>
inline constexpr T kLargest = T(~kSmallest<T>);

constexpr double kInfinity = __builtin_inf();
constexpr double kNaN = __builtin_nan("");

// The elements of a machine vector, and integers of another size with as much sign.
template <class E>
struct Bare {
  using Type = E;
};
template <class E>
struct Bare<E&> : Bare<E> {};
template <class E>
struct Bare<const E> : Bare<E> {};
template <class V>
using Element = typename Bare<decltype(V{}[0])>::Type;
template <bool kSigned, int kBytes>
struct IntegerLike {
  using Type = typename IntegerOf<kBytes>::Unsigned;
};
template <int kBytes>
struct IntegerLike<true, kBytes> {
  using Type = typename IntegerOf<kBytes>::Signed;
};
template <class E, int kBytes>
using Integer = typename IntegerLike<is_signed<E>, kBytes>::Type;

// Applies f to the parts of its arguments.
template <class R, class F, class T, int W, class... More>
JF_FUNCTION Lanes<R, W> map(F f, Lanes<T, W> a, More... more) {
  if constexpr (W <= JF_PART) {
    return {f(a.v, more.v...)};
  } else {
    return {map<R>(f, a.lo, more.lo...), map<R>(f, a.hi, more.hi...)};
  }
}
// Applies f to the lanes one by one.
template <class R, class F, class T, int W, class... More>
JF_FUNCTION Lanes<R, W> map_lanes(F f, Lanes<T, W> a, More... more) {
  if constexpr (W <= JF_PART) {
    Part<R> result{};
    for (int i = 0; i < W; ++i) result[i] = f(a.v[i], more.v[i]...);
    return {result};
  } else {
    return {map_lanes<R>(f, a.lo, more.lo...), map_lanes<R>(f, a.hi, more.hi...)};
  }
}

// Minus zero keeps its sign in x - 0, and loses it in 0 + x.
template <class T>
JF_FUNCTION Part<T> splat(T x) {
  return x - Part<T>{};
}
typedef u64 Words __attribute__((vector_size(16)));

// Integers of another width in one instruction: g++ takes several to double or halve it, and often goes further one by
// one.
template <int kFromBytes, int kToBytes, int kLanes>
struct Resizing {
  static constexpr bool kExists = false;
};
#if !defined(__clang__) && defined(__AVX2__)
constexpr int register_bytes(int bytes) { return bytes < 16 ? 16 : bytes; }
#define JF_RESIZING(From, To, lanes, signed_name, unsigned_name, ...)                               \
  template <>                                                                                       \
  struct Resizing<sizeof(From), sizeof(To), lanes> {                                                \
    typedef From Input __attribute__((vector_size(register_bytes(lanes * sizeof(From)))));          \
    typedef To Output __attribute__((vector_size(register_bytes(lanes * sizeof(To)))));             \
    static constexpr bool kExists = true;                                                           \
    JF_FUNCTION auto of_signed(Input x) { return __builtin_ia32_##signed_name(x __VA_ARGS__); }     \
    JF_FUNCTION auto of_unsigned(Input x) { return __builtin_ia32_##unsigned_name(x __VA_ARGS__); } \
  };
#define JF_WIDENING(From, To, lanes, name, ...) JF_RESIZING(From, To, lanes, pmovsx##name, pmovzx##name, __VA_ARGS__)
JF_WIDENING(char, short, 16, bw256)
JF_WIDENING(char, int, 8, bd256)
JF_WIDENING(short, int, 8, wd256)
JF_WIDENING(int, long long, 4, dq256)
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define JF_ALL_OF , Output{}, -1
JF_WIDENING(char, short, 32, bw512_mask, JF_ALL_OF)
JF_WIDENING(char, int, 16, bd512_mask, JF_ALL_OF)
JF_WIDENING(short, int, 16, wd512_mask, JF_ALL_OF)
JF_WIDENING(int, long long, 8, dq512_mask, JF_ALL_OF)
JF_RESIZING(int, char, 16, pmovdb512_mask, pmovdb512_mask, JF_ALL_OF)
JF_RESIZING(int, char, 8, pmovdb256_mask, pmovdb256_mask, JF_ALL_OF)
JF_RESIZING(short, char, 16, pmovwb256_mask, pmovwb256_mask, JF_ALL_OF)
#undef JF_ALL_OF
#endif
#undef JF_WIDENING
#undef JF_RESIZING
#endif
template <class R, class From, class To, class V>
JF_FUNCTION auto resized(const V& x) {
  typename R::Input input;
  if constexpr (sizeof(V) < sizeof(input)) {
    input = (typename R::Input)Words{(Unsigned<V>)x, 0};
  } else {
    input = (typename R::Input)x;
  }
  typename R::Output output;
  if constexpr (is_signed<From>) {
    output = (typename R::Output)R::of_signed(input);
  } else {
    output = (typename R::Output)R::of_unsigned(input);
  }
  if constexpr (sizeof(Part<To>) < sizeof(output)) {
    return (Part<To>)Unsigned<Part<To>>(((Words)output)[0]);
  } else {
    return (Part<To>)output;
  }
}

// Parts of another element type: by value, and with the same bits. Vectors wider than the machine's are passed by
// reference.
template <class T, class V>
JF_FUNCTION Part<T> value_as(const V& x) {
#if !defined(__clang__)
  using From = Element<V>;
  using R = Resizing<sizeof(From), sizeof(T), JF_PART>;
  if constexpr (!is_float<T> && !is_float<From>) {
    if constexpr (R::kExists) return resized<R, From, T>(x);
    if constexpr (!R::kExists && sizeof(T) > 2 * sizeof(From)) {
      return value_as<T>(value_as<Integer<From, 2 * sizeof(From)>>(x));
    }
    if constexpr (!R::kExists && 2 * sizeof(T) < sizeof(From)) {
      return value_as<T>(value_as<Integer<From, sizeof(From) / 2>>(x));
    }
  }
#endif
  return __builtin_convertvector(x, Part<T>);
}
template <class T, class V>
JF_FUNCTION Part<T> bits_as(const V& x) {
  return (Part<T>)x;
}
// A comparison gives a mask as wide as what it compared.
template <class V>
JF_FUNCTION Part<pred> to_pred(V mask) {
  return value_as<Mask>(mask);
}
// Whether a mask holds in any lane.
#if defined(__clang__)
JF_FUNCTION bool any(const Part<s32>& mask) { return __builtin_reduce_or(mask) != 0; }
#elif defined(__AVX512F__) && JF_PART == 16
JF_FUNCTION bool any(const Part<s32>& mask) { return __builtin_ia32_ptestmd512(mask, mask, -1) != 0; }
#elif defined(__AVX__) && JF_PART == 8
JF_FUNCTION bool any(const Part<s32>& mask) { return __builtin_ia32_movmskps256((Part<f32>)mask) != 0; }
#else
JF_FUNCTION bool any(const Part<s32>& mask) {
  s32 some = 0;
  for (int i = 0; i < JF_PART; ++i) some |= mask[i];
  return some != 0;
}
#endif

// true_value where the pred holds.
template <class T>
JF_FUNCTION Part<T> pick(Part<pred> where, Part<T> true_value, Part<T> false_value) {
  if constexpr (is_same<T, pred> || sizeof(T) == sizeof(Mask)) {
    return where ? true_value : false_value;
  } else {
    return value_as<Signed<T>>(where) ? true_value : false_value;
  }
}

}  // namespace jf
