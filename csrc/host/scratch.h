// Scratch memory of CPU kernels (packed panels). Fresh pages cost more than the packing itself (a 64 MB block faults
// for 14 ms), so blocks are kept for the next call instead of going back to malloc; there are as many as calls ran at
// once.
#pragma once

#include <cstddef>
#include <span>

namespace jf::host {

class Scratch {
 public:
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // 64-byte aligned, contents undefined.
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace jf::host
