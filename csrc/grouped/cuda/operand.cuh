// One operand of a tensor-core tile: its slice in shared memory, the copy that fills it, the fragments read from it.
//
// Memory is seen in chunks of 16 bytes. A row of the slice is the contiguous direction of global memory: contraction
// indices when K-major, tile rows (of lhs) or columns (of rhs) otherwise. Chunk c of row r lies at chunk c ^
// swizzle(r), which puts every eight chunks that are read at once into different banks.
#pragma once

#include "grouped/cuda/tile.cuh"

namespace jf::grouped {

// kExtent: rows of lhs or columns of rhs in the tile; kDepth: contraction indices.
template <class T, bool kIsLhs, bool kKMajor, int kExtent, int kDepth, int kThreads, int kAccess>
struct Operand {
  static constexpr int kSize = sizeof(T);
  static constexpr int kPerChunk = 16 / kSize;
  static constexpr int kMmaDepth = 32 / kSize;  // contraction indices of one mma: two chunks
  static constexpr int kRows = kKMajor ? kExtent : kDepth;
  static constexpr int kChunks = (kKMajor ? kDepth : kExtent) / kPerChunk;  // of one row
  static constexpr int kPitch = kChunks * 16;
  static constexpr int kBytes = kRows * kPitch;
  // ldmatrix transposes 16-bit elements only; wider ones are then read word by word.
  static constexpr bool kByWord = !kKMajor && kSize == 4;

  static_assert(kSize == 2 || kSize == 4, "tensor cores take 16-bit elements or f32");
  static_assert(kChunks == 4 || kChunks % 8 == 0, "the swizzle needs rows of 64 bytes or of whole 128 bytes");
  static_assert(kKMajor || kChunks % 8 == 0, "a slice that is not K-major needs rows of whole 128 bytes");
  static_assert((kPitch & (kPitch - 1)) == 0,
                "fragments are found by xor, which needs rows of a power of two of bytes");
  static_assert(kDepth % (2 * kMmaDepth) == 0, "fragments are double buffered: an even number of mma steps per slice");

  static __device__ __forceinline__ unsigned swizzle(unsigned row) {
    if constexpr (kByWord) return (row % 4) * 2;  // eight words of each of four rows are read at once
    if constexpr (kChunks == 4) return (row / 2) % 4;
    return row % 8;
  }
  static __device__ __forceinline__ unsigned offset(unsigned row, unsigned chunk) {
    return row * kPitch + ((chunk ^ swizzle(row)) * 16);
  }

  // ---- global to shared ----
  static constexpr int kRowStep = kThreads / kChunks;  // rows that the block copies at once
  static_assert(kThreads % kChunks == 0 && kRows % kRowStep == 0, "the threads of a block must divide a slice evenly");

  // This thread's first chunk, moved from slice to slice.
  struct Source {
    const T* data;
    long long pitch;
    int outer;  // rows and elements from here to the end of the view
    int inner;

    __device__ __forceinline__ explicit Source(const View<const T>& view) {
      const int thread = static_cast<int>(threadIdx.x), row = thread / kChunks, column = thread % kChunks * kPerChunk;
      data = view.data + row * view.pitch + column;
      pitch = view.pitch;
      outer = view.outer - row;
      inner = view.inner - column;
    }
    __device__ __forceinline__ void advance() {
      if constexpr (kKMajor) {
        data += kDepth;
        inner -= kDepth;
      } else {
        data += kDepth * pitch;
        outer -= kDepth;
      }
    }
  };

  // Starts the copy of one slice; what lies outside the view becomes zero.
  static __device__ __forceinline__ void copy(unsigned shared, const Source& source) {
    const unsigned row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    const unsigned first = shared + offset(row, chunk);
    // The swizzle repeats after eight rows.
    const auto target = [&](int r) { return kRowStep % 8 == 0 ? first + r * kPitch : shared + offset(row + r, chunk); };
    const T* data = source.data;
    if constexpr (kAccess >= 4) {
#pragma unroll
      for (int r = 0; r < kRows; r += kRowStep) {
#pragma unroll
        for (int byte = 0; byte < 16; byte += kAccess) {
          const int element = byte / kSize;
          ptx::cp_async<kAccess>(target(r) + byte, data + element, r < source.outer && element < source.inner);
        }
        data += kRowStep * source.pitch;
      }
    } else {
      // 16-bit elements at odd addresses, which cp.async cannot copy.
#pragma unroll 1
      for (int r = 0; r < kRows; r += kRowStep) {
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const bool low = r < source.outer && 2 * w < source.inner;
          const bool high = r < source.outer && 2 * w + 1 < source.inner;
          words[w] = low ? data[2 * w].bits : 0u;
          words[w] |= high ? static_cast<unsigned>(data[2 * w + 1].bits) << 16 : 0u;
        }
        ptx::st_shared(target(r), words);
        data += kRowStep * source.pitch;
      }
    }
  }

  // ---- shared to registers ----
  // A fragment is 16 along the extent by kMmaDepth. Its words are in the order of mma: for lhs a0..a3, for rhs b0 and
  // b1 of the first eight columns, then of the second eight.

  // Byte offset of this lane's part of the fragment at `first` along the extent and contraction index 0. `first` must
  // be a multiple of the warp's extent, itself a power of two: fragments are then found by adding to rows and xor on
  // chunks.
  static __device__ __forceinline__ unsigned lane_offset(unsigned first) {
    const unsigned lane = threadIdx.x % 32;
    if constexpr (kByWord) {
      const unsigned k = lane % 4, i = first + lane / 4;
      return offset(k, i / 4) + (i % 4) * 4;
    } else {
      // Lanes 8..15 address the second matrix, 16..23 the third: the one that is next along the extent comes first for
      // lhs, the one next along the contraction for rhs.
      const unsigned near = (lane / 8) % 2, far = lane / 16;
      const unsigned along_extent = kIsLhs ? near : far, along_depth = kIsLhs ? far : near;
      if constexpr (kKMajor) return offset(first + lane % 8 + along_extent * 8, along_depth);
      return offset(lane % 8 + along_depth * 8, first / kPerChunk + along_extent);
    }
  }

  static __device__ __forceinline__ void fragment(unsigned (&words)[4], unsigned shared, unsigned lane, int block,
                                                  int step) {
    if constexpr (kByWord) {
      const unsigned row = shared + step * (kMmaDepth * kPitch);
      constexpr int kDeep = 4 * kPitch;  // four contraction indices further
      const unsigned here = lane ^ (block * 64), beside = lane ^ (block * 64 + 32);
      words[0] = ptx::ld_shared(row + here);
      words[kIsLhs ? 2 : 1] = ptx::ld_shared(row + here + kDeep);
      words[kIsLhs ? 1 : 2] = ptx::ld_shared(row + beside);
      words[3] = ptx::ld_shared(row + beside + kDeep);
    } else if constexpr (kKMajor) {
      ptx::ldmatrix_x4(words, shared + (lane ^ (step * 32)) + block * (16 * kPitch));
    } else {
      ptx::ldmatrix_x4_trans(words, shared + (lane ^ (block * 32)) + step * (kMmaDepth * kPitch));
    }
  }
};

}  // namespace jf::grouped
