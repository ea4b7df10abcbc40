// Where HopperRows has its rows of lhs from, and how those that numbers name get into its stages: by copies of 16 bytes
// of three warps, since a tensor copy brings neighbours (H200: one for each row takes 50 cycles of the copy unit, the
// product of its 64 elements with 256 columns takes 8).
#pragma once

#include "grouped/cuda/hopper_schedule.cuh"
#include "grouped/cuda/ptx_hopper.cuh"

namespace jf::grouped {

// Tensor copies of one thread bring them, as they lie.
struct RowsInOrder {
  static constexpr bool kGathers = false;
  static constexpr int kWarps = 1, kArrivals = 0;
  static constexpr int kCopyRegisters = 40, kMultiplyRegisters = 232;
};

// Row r is that of [count, k] from `rows` on which number[r] names, or is zeros if there is none.
struct RowsByNumber {
  static constexpr bool kGathers = true;
  static constexpr int kWarps = 3;               // that copy
  static constexpr int kArrivals = kWarps * 32;  // for each stage, beside that of the thread that copies rhs
  static constexpr int kCopyRegisters = 72, kMultiplyRegisters = 216;
  const void* rows;
  const int* number;
  unsigned count;
};

// What warp `self` of those that copy holds of a unit. An access of a warp is 128 bytes of four rows each; the warps
// take every third one. A lane keeps the addresses of all its accesses: fewer instructions come between them.
template <int kRows>
class GatheringWarp {
  static constexpr int kWarps = RowsByNumber::kWarps, kTogether = 4, kLanes = 32 / kTogether;
  static constexpr int kRowBytes = 128, kChunkBytes = 16;
  static constexpr int kPitch = kWarps * kTogether;                // rows from an access to the next
  static constexpr int kAccesses = (kRows + kPitch - 1) / kPitch;  // of a warp
  static constexpr int kAtOnce = 4;                                // between two branches
  static_assert(kPitch % 8 == 4, "accesses are swizzled in two ways in turn");
  static_assert(kRows <= 128, "addresses are registers");

 public:
  __device__ __forceinline__ GatheringWarp(const RowsByNumber& source, unsigned self, unsigned row_bytes)
      : source_(source), self_(self), row_bytes_(row_bytes), chunk_(lane_id() % kLanes * kChunkBytes) {
    // As a tensor copy swizzles; every other access begins at a row with 4 more modulo 8.
    const unsigned row = self * kTogether + lane_id() / kLanes;
    to_ = row * kRowBytes + (chunk_ ^ row % 8 * kChunkBytes);
  }

  __device__ __forceinline__ void begin(const RowUnit& unit) {
    const int first = static_cast<int>(self_ * kTogether + lane_id() / kLanes);
    accesses_ = cdiv(unit.count - static_cast<int>(self_) * kTogether, kPitch);
    unsigned number[kAccesses];
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      const int row = first + i * kPitch;
      number[i] = row < unit.count ? static_cast<unsigned>(__ldg(source_.number + unit.row + row)) : ~0u;
    }
    valid_ = 0;
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      const bool valid = number[i] < source_.count;
      valid_ |= valid ? 1u << i : 0;
      at_[i] = static_cast<const char*>(source_.rows) + chunk_ +
               (valid ? number[i] : 0) * static_cast<unsigned long long>(row_bytes_);
    }
  }

  // Into the stage at `stage` the next 128 bytes of each row, which lie `byte` behind its begin; zeros where it has
  // ended.
  __device__ __forceinline__ void copy(unsigned stage, unsigned byte) {
    const unsigned valid = byte + chunk_ < row_bytes_ ? valid_ : 0;
    const unsigned even = stage + to_, odd = stage + (to_ ^ 4 * kChunkBytes);
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      if (i % kAtOnce == 0 && i >= accesses_) break;
      if (fits(i)) {
        ptx::cp_async<kChunkBytes>((i % 2 ? odd : even) + i * (kPitch * kRowBytes), at_[i], valid >> i & 1);
      }
      at_[i] += kRowBytes;
    }
  }

 private:
  // Whether the tile has the rows of the access.
  __device__ __forceinline__ bool fits(int i) const {
    return (i + 1) * kPitch <= kRows || i * kPitch + static_cast<int>(self_ + 1) * kTogether <= kRows;
  }

  const RowsByNumber& source_;
  unsigned self_, row_bytes_, chunk_, to_;
  const char* at_[kAccesses];  // of this lane's row of each access
  unsigned valid_ = 0;         // a bit for each
  int accesses_ = 0;
};

}  // namespace jf::grouped
