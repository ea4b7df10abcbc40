// The template parameters of a grouped kernel, its operands and its element types.
#pragma once

#include "codegen/float16.cuh"
#include "codegen/ptx.cuh"

namespace jf::grouped {

// Output tile of one block and how it is computed: kStages slices of kK contraction indices are in flight, and a grid
// of warps, kWarpsM x kWarpsN, shares the tile.
template <int kM_, int kN_, int kK_, int kStages_, int kWarpsM_, int kWarpsN_>
struct Tile {
  static constexpr int kM = kM_, kN = kN_, kK = kK_;
  static constexpr int kStages = kStages_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
};

// How the operands lie in memory. K-major: the contraction index is the contiguous one. Access: bytes of the widest
// access to which every row of that array is aligned; 16 needs a base address aligned to 16.
template <bool kLhsKMajor_, bool kRhsKMajor_, int kLhsAccess_, int kRhsAccess_, int kOutAccess_>
struct Layout {
  static constexpr bool kLhsKMajor = kLhsKMajor_, kRhsKMajor = kRhsKMajor_;
  static constexpr int kLhsAccess = kLhsAccess_, kRhsAccess = kRhsAccess_, kOutAccess = kOutAccess_;
};

// A matrix in global memory, `inner` contiguous; nothing outside [0, outer) x [0, inner) is read or written.
template <class T>
struct View {
  T* data;
  long long pitch;  // elements from row to row
  int outer;
  int inner;
};

__device__ __forceinline__ int cdiv(int a, int b) { return a / b + (a % b != 0); }

template <class T>
__device__ __forceinline__ T widen(T value) {
  return value;
}
__device__ __forceinline__ float widen(bf16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
__device__ __forceinline__ float widen(f16 value) { return ptx::f32_from_f16(value.bits); }

template <class T>
struct Narrow {
  template <class From>
  static __device__ __forceinline__ T from(From value) {
    return static_cast<T>(value);
  }
};
template <>
struct Narrow<bf16> {
  static __device__ __forceinline__ bf16 from(float value) { return {ptx::bf16_from_f32(value)}; }
  static __device__ __forceinline__ unsigned pair(float low, float high) { return ptx::bf16x2_from_f32(low, high); }
};
template <>
struct Narrow<f16> {
  static __device__ __forceinline__ f16 from(float value) { return {ptx::f16_from_f32(value)}; }
  static __device__ __forceinline__ unsigned pair(float low, float high) { return ptx::f16x2_from_f32(low, high); }
};

// An unsigned word of so many bytes.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = unsigned char;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// Zeros into every element of the view, by all threads of the block.
template <int kThreads, int kAccess, class T>
__device__ void store_zeros(View<T> out) {
  using Word = typename WordOf<kAccess>::Type;
  constexpr int kElements = kAccess / static_cast<int>(sizeof(T));
  const int words = cdiv(out.inner, kElements);
  for (int i = static_cast<int>(threadIdx.x); i < out.outer * words; i += kThreads) {
    const int row = i / words, word = i % words;
    *reinterpret_cast<Word*>(out.data + row * out.pitch + word * kElements) = Word{};
  }
}

}  // namespace jf::grouped
