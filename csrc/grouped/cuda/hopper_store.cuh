// The results of one warpgroup on their way from registers to memory: 64 columns of out by a tile's rows at a time.
//
// Sums are held transposed, as the product left them: thread rows are columns of out. kStoreRows rows at a time they
// become rows of 128 bytes in one of two buffers, from where a tensor copy takes them while the warpgroup goes on. A
// copy cannot end where a group does, so a group's last rows are stored by the threads.
#pragma once

#include "grouped/cuda/ptx_hopper.cuh"
#include "grouped/cuda/tile.cuh"

namespace jf::grouped {

template <class T>
constexpr bool kIsBf16 = false;
template <>
constexpr bool kIsBf16<bf16> = true;

// The other way: a thread's sums of 64 rows of out that were rows of the product too, and of 128 bytes of columns or
// the `columns` of them that there are, into a buffer of rows of 128 bytes, swizzled as tensor copies do it.
template <class Out>
__device__ __forceinline__ void put_rows(unsigned to, const float* sums, int columns = 128 / sizeof(Out)) {
  const unsigned lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 % 4 * 16;
  if constexpr (sizeof(Out) == 2) {
    const unsigned row = warp_row + lane % 16;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {  // 16 columns
      if (static_cast<int>(i) * 16 >= columns) break;
      const float* s = sums + i * 8;
      const unsigned words[4] = {Narrow<Out>::pair(s[0], s[1]), Narrow<Out>::pair(s[2], s[3]),
                                 Narrow<Out>::pair(s[4], s[5]), Narrow<Out>::pair(s[6], s[7])};
      ptx::stmatrix_x4(to + row * 128 + ((2 * i + lane / 16) ^ row % 8) * 16, words);
    }
  } else {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {  // 8 columns
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned row = warp_row + lane / 4 + half * 8, word = i * 8 + lane % 4 * 2;
        const unsigned at = to + row * 128 + ((word / 4) ^ row % 8) * 16 + word % 4 * 4;
        ptx::st_shared(at, sums[i * 4 + half * 2]);
        ptx::st_shared(at + 4, sums[i * 4 + half * 2 + 1]);
      }
    }
  }
}

// kMost: rows of a buffer, of 16-bit results.
template <class Out, int kRows, int kMost = 64>
class HopperStore {
  static constexpr int kSize = sizeof(Out), kThreads = 128, kSlice = 64;
  static constexpr int kRowBytes = 128;                    // of a buffer: the span of the swizzle
  static constexpr int kStoreColumns = kRowBytes / kSize;  // of one tensor copy
  static constexpr int kParts = kSlice / kStoreColumns;    // tensor copies side by side
  static constexpr int kMostRows = kMost / kParts;         // 8 KiB at most
  static constexpr int kStoreRows = kRows < kMostRows ? kRows : kMostRows;
  static constexpr int kPartBytes = kStoreRows * kRowBytes;
  static constexpr int kPerChunk = 16 / kSize;  // elements of 16 bytes

 public:
  // Used by a tile alone: two tiles in turn (kAgain) have two in any case.
  static constexpr int kBuffers = kRows > kStoreRows ? 2 : 1, kBufferBytes = kParts * kPartBytes;
  struct Shared {
    alignas(1024) unsigned char buffers[2][kBufferBytes];
  };

  __device__ __forceinline__ explicit HopperStore(Shared& shared) : shared_(ptx::shared_address(&shared)) {}
  __device__ __forceinline__ explicit HopperStore(unsigned shared) : shared_(shared) {}

  // kAgain: behind a call of as many rows, which has left the other buffer to this one.
  template <bool kAgain = false, int kSums>
  __device__ __forceinline__ void results(const float (&sums)[kSums], const TensorMap& map, Out* out, int row,
                                          int count, int column, int n) {
    if (column >= n) return;
    const unsigned other = kAgain && (count - 1) / kStoreRows % 2 == 0 ? kParts * kPartBytes : 0;
#pragma unroll
    for (int first = 0; first < kRows; first += kStoreRows) {
      if (first >= count) return;
      const unsigned buffer = shared_ + (first / kStoreRows % 2 * (kParts * kPartBytes) ^ other);
      // The copy from this buffer, the last but one of these rows or any of those before, has read it.
      if (thread() == 0) {
        if (first == 0 && !kAgain) {
          ptx::bulk_wait_read<0>();
        } else {
          ptx::bulk_wait_read<1>();
        }
      }
      meet();
      put(buffer, sums, first);
      send(buffer, map, out, row + first, count - first, column, n);
    }
  }

  // Shared memory may go.
  __device__ __forceinline__ void drain() {
    if (thread() == 0) ptx::bulk_wait_read<0>();
  }

  // What the warpgroup has put into a buffer: kStoreRows rows from `row` on, or the `rows` that are left.
  static __device__ __forceinline__ void send(unsigned buffer, const TensorMap& map, Out* out, int row, int rows,
                                              int column, int n) {
    ptx::fence_async_shared();
    meet();
    deliver(buffer, map, out, row, rows, column, n, n, 0);
    if (thread() == 0) ptx::bulk_commit();
  }
  // The last step of that, for an array with `pitch` columns of which these are n from `first` on.
  static __device__ __forceinline__ void deliver(unsigned buffer, const TensorMap& map, Out* out, int row, int rows,
                                                 int column, int n, int pitch, int first) {
    if (rows >= kStoreRows) {
      if (thread() == 0) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          ptx::tile_store(&map, buffer + part * kPartBytes, first + column + part * kStoreColumns, row);
        }
      }
    } else {
      copy_rows(buffer, out + static_cast<long long>(row) * pitch + first + column, rows, n - column, pitch);
    }
  }

  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x % kThreads); }
  // At a barrier that only this warpgroup uses.
  static __device__ __forceinline__ void meet() { ptx::meet<kThreads>(1 + threadIdx.x / kThreads); }

  // 16 bytes number `chunk` of a row, as the swizzle places them.
  static __device__ __forceinline__ unsigned offset(int row, int chunk) {
    return (chunk / 8) * kPartBytes + row * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16;
  }

  // Rows [first, first + kStoreRows) of the tile.
  template <int kSums>
  static __device__ __forceinline__ void put(unsigned buffer, const float (&sums)[kSums], int first) {
    const int lane = thread() % 32, warp = thread() / 32;
    if constexpr (kSize == 2) {
      // Matrices of 8 rows by 8 columns, two of each way at once.
      const unsigned to = buffer + offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
#pragma unroll
      for (int r = 0; r < kStoreRows; r += 16) {
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w)
          words[w] = Narrow<Out>::pair(sums[(first + r) / 2 + w * 2], sums[(first + r) / 2 + w * 2 + 1]);
        ptx::stmatrix_x4_trans(to + r * kRowBytes, words);
      }
    } else {
      // Of the thread's four sums in eight rows, the second lies a row further, the third eight columns.
      const unsigned to = buffer + offset(lane % 4 * 2, warp * 4 + lane / 16) + lane / 4 % 4 * 4;
#pragma unroll
      for (int r = 0; r < kStoreRows; r += 8) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          ptx::st_shared((to ^ (i % 2 * 16 + i / 2 * 32)) + (r + i % 2) * kRowBytes, sums[(first + r) / 2 + i]);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ void copy_rows(unsigned buffer, Out* to, int rows, int columns, long long pitch) {
    constexpr int kChunks = kSlice / kPerChunk;
    for (int i = thread(); i < rows * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (chunk * kPerChunk >= columns) continue;
      const int4 words = ptx::ld_shared4(buffer + offset(row, chunk));
      ptx::st_global(to + row * pitch + chunk * kPerChunk, reinterpret_cast<const uint4&>(words));
    }
  }

  unsigned shared_;
};

}  // namespace jf::grouped
