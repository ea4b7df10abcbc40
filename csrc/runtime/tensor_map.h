// What a kernel knows of an array whose boxes it copies.
#pragma once

#include <array>
#include <cstdint>

namespace jf::runtime {

constexpr int kMostTensorAxes = 5;

// Axes: the fastest first, whose elements are consecutive.
struct TensorLayout {
  int axes = 1;
  int element_bytes = 1;
  std::array<uint64_t, kMostTensorAxes> extents{};
  std::array<uint64_t, kMostTensorAxes> stride_bytes{};  // of every axis; the first is the element's size
  std::array<uint32_t, kMostTensorAxes> box{};
  int swizzle = 0;  // bytes: 0, 32, 64, 128
};

// The driver's description, a parameter of the kernel.
struct alignas(64) TensorMap {
  std::array<uint64_t, 16> words;
};

// On the host alone: allocates nothing and may run while a graph is captured.
void encode(TensorMap& map, const TensorLayout& layout, void* address);

}  // namespace jf::runtime
