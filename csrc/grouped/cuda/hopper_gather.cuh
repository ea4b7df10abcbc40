// Where HopperRows has its rows of lhs from, and how those that numbers name get into its stages: by copies of 16 bytes
// of three warps, since a tensor copy brings neighbours (H200: one for each row takes 50 cycles of the copy unit, six
// times as long as the product of the row's 64 elements with 128 columns).
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
  static constexpr int kCopyRegisters = 56, kMultiplyRegisters = 224;
  const void* rows;
  const int* number;
  unsigned count;
};

// What warp `self` of those that copy holds of a unit. An access of a warp is 128 bytes of four rows each; the warps
// take every third one.
template <int kRows>
class GatheringWarp {
  static constexpr int kWarps = RowsByNumber::kWarps, kTogether = 4, kLanes = 32 / kTogether;
  static constexpr int kRowBytes = 128, kChunkBytes = 16;
  static constexpr int kPitch = kWarps * kTogether;                // rows from an access to the next
  static constexpr int kAccesses = (kRows + kPitch - 1) / kPitch;  // of a warp
  static constexpr int kAtOnce = 4;                                // between two branches
  static constexpr unsigned kNone = ~0u;

 public:
  // Rows of `row_bytes`, at most 64 GiB in all.
  __device__ __forceinline__ GatheringWarp(const RowsByNumber& source, unsigned self, int row_bytes)
      : source_(source),
        self_(self),
        row_chunks_(row_bytes / kChunkBytes),
        from_(static_cast<const char*>(source.rows) + chunk() * kChunkBytes) {
    // As a tensor copy swizzles; every other access begins at a row with 4 more modulo 8.
    const unsigned row = self * kTogether + row_of_lane();
    to_ = row * kRowBytes + (chunk() ^ row % 8) * kChunkBytes;
  }

  __device__ __forceinline__ void begin(const RowUnit& unit) {
    const int first = static_cast<int>(self_ * kTogether + row_of_lane());
    accesses_ = cdiv(unit.count - static_cast<int>(self_) * kTogether, kPitch);
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      const int row = first + i * kPitch;
      at_[i] = row < unit.count ? static_cast<unsigned>(__ldg(source_.number + unit.row + row)) : kNone;
    }
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) at_[i] = at_[i] < source_.count ? at_[i] * row_chunks_ : kNone;
  }

  // Into the stage at `stage` the 128 bytes from `chunk` chunks on, zeros where a row has ended.
  __device__ __forceinline__ void copy(unsigned stage, unsigned chunk) const {
    const char* from = from_ + chunk * kChunkBytes;
    asm volatile("" : "+l"(from));  // one addition, not one for each access
    const bool inside = chunk + this->chunk() < row_chunks_;
    const unsigned even = stage + to_, odd = stage + (to_ ^ 4 * kChunkBytes);
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      if (i % kAtOnce == 0 && i >= accesses_) break;
      if (!fits(i)) continue;
      ptx::cp_async<kChunkBytes>((i % 2 ? odd : even) + i * (kPitch * kRowBytes),
                                 from + at_[i] * static_cast<unsigned long long>(kChunkBytes),
                                 inside && at_[i] != kNone);
    }
  }

 private:
  static_assert(kPitch % 8 == 4, "accesses are swizzled in two ways in turn");

  static __device__ __forceinline__ unsigned chunk() { return lane_id() % kLanes; }
  static __device__ __forceinline__ unsigned row_of_lane() { return lane_id() / kLanes; }
  // Whether the tile has the rows of the access.
  __device__ __forceinline__ bool fits(int i) const {
    return (i + 1) * kPitch <= kRows || i * kPitch + static_cast<int>(self_ + 1) * kTogether <= kRows;
  }

  const RowsByNumber& source_;
  unsigned self_, row_chunks_;
  const char* from_;
  unsigned to_;
  unsigned at_[kAccesses];  // of this lane's row of each access, in chunks
  int accesses_ = 0;
};

}  // namespace jf::grouped
