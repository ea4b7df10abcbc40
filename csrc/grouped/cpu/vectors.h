// Vectors of one instruction set, in GCC's vector extension, and the conversion of element types to and from them.
//
// Reached through multiply.h from each kernels_<isa>.cpp, after its `struct Machine`:
//   kVectorBytes, kTileRows                     width of a register, rows of a register tile
//   load_f16(p), convert_f16(v)                 f16 to and from a register of f32
//   stream(p, v), fence()                       stores past the caches, and their end
// Everything here has internal linkage: code for a wide instruction set must not serve another file.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace jf::grouped::cpu {
namespace {

template <class T, int kLanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * kLanes)));
};
template <class T, int kLanes>
using Vector = typename VectorOf<T, kLanes>::type;

template <class T>
constexpr int kLanes = Machine::kVectorBytes / static_cast<int>(sizeof(T));
// A whole register of T.
template <class T>
using Register = Vector<T, kLanes<T>>;

template <class V>
inline V load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

template <class V>
inline void store(void* to, V value) {
  std::memcpy(to, &value, sizeof(V));
}

template <class T, int kDistance, int... kLane>
inline void exchange(Register<T>& a, Register<T>& b, std::integer_sequence<int, kLane...>) {
  const Register<T> low =
      __builtin_shufflevector(a, b, ((kLane & kDistance) ? kLanes<T> + (kLane ^ kDistance) : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kDistance) ? kLanes<T> + kLane : (kLane | kDistance))...);
  a = low;
}

// Transposes a square of kLanes<T> registers: swaps off-diagonal blocks of 1, 2, 4.. lanes.
template <class T, int kDistance = 1>
inline void transpose(Register<T>* square) {
  if constexpr (kDistance < kLanes<T>) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
      if (!(i & kDistance)) {
        exchange<T, kDistance>(square[i], square[i | kDistance], std::make_integer_sequence<int, kLanes<T>>());
      }
    }
    transpose<T, 2 * kDistance>(square);
  }
}

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

using Floats = Register<float>;
using FloatBits = Register<uint32_t>;
using HalfBits = Vector<uint16_t, kLanes<float>>;

// Between a register of T and memory that holds Memory. Integers are widened by their sign and cut to their width.
template <class Memory, class T>
struct Format {
  static Register<T> load_lanes(const Memory* from) {
    const auto narrow = load<Vector<Memory, kLanes<T>>>(from);
    if constexpr (std::is_signed_v<Memory>) {
      return (Register<T>)__builtin_convertvector(narrow, Register<std::make_signed_t<T>>);
    } else {
      return __builtin_convertvector(narrow, Register<T>);
    }
  }
  static auto convert(Register<T> value) { return __builtin_convertvector(value, Vector<Memory, kLanes<T>>); }
};

template <class T>
  requires std::is_floating_point_v<T>
struct Format<T, T> {
  static Register<T> load_lanes(const T* from) { return load<Register<T>>(from); }
  static Register<T> convert(Register<T> value) { return value; }
};

template <>
struct Format<Half, float> {
  static Floats load_lanes(const Half* from) { return Machine::load_f16(from); }
  static HalfBits convert(Floats value) { return Machine::convert_f16(value); }
};

template <>
struct Format<Brain, float> {
  static Floats load_lanes(const Brain* from) {
    return (Floats)(__builtin_convertvector(load<HalfBits>(from), FloatBits) << 16);
  }
  // To nearest, ties to even; a NaN stays one.
  static HalfBits convert(Floats value) {
    const FloatBits bits = (FloatBits)value;
    const FloatBits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const FloatBits quiet = bits | 0x400000u;
    return __builtin_convertvector((FloatBits)(value == value ? rounded : quiet) >> 16, HalfBits);
  }
};

}  // namespace
}  // namespace jf::grouped::cpu
