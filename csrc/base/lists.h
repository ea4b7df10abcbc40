// Questions about lists of numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

namespace jf {

template <class List, class T>
bool contains(const List& list, const T& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

inline int64_t product(std::span<const int64_t> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{1}, std::multiplies<>());
}

// Of a dense array: how many elements the next index of each axis is away.
inline std::vector<int64_t> strides(std::span<const int64_t> shape) {
  std::vector<int64_t> result(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) result[i - 1] = result[i] * shape[i];
  return result;
}

}  // namespace jf
