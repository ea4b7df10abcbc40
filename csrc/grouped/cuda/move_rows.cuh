// Rows of an array moved by index: to each place that a row has, and back, adding up the rows of each place. Time goes
// with the rows that are moved: an index outside stands for none.
//
// A warp has a piece of a row at a time, and warps take pieces in turn. Each row is read from memory once; several
// reads of one, as a gather has, fill the L2 cache's links where the array is larger than half of it. Arrays begin and
// rows follow at multiples of 16 bytes.
#pragma once

#include "codegen/cuda_lanes.cuh"

namespace jf {

struct RowMoves {
  static constexpr int kThreads = 128;

  // Calls f(row, first vector of a lane) for the warp's pieces of so many vectors.
  template <int kPiece, class F>
  static __device__ __forceinline__ void for_pieces(long rows, long vectors, F f) {
    const long pieces = (vectors + kPiece - 1) / kPiece, warps = long(gridDim.x) * (kThreads / 32);
    for (long at = long(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32; at < rows * pieces; at += warps) {
      f(at / pieces, at % pieces * kPiece + threadIdx.x % 32);
    }
  }
  // Calls f(indices of 32 uses, one for each lane, which of them are there).
  template <class F>
  static __device__ __forceinline__ void for_uses(const int* uses, int count, F f) {
    for (int first = 0; first < count; first += 32) {
      const int own = first + int(threadIdx.x % 32);
      const int index = own < count ? uses[own] : -1;
      f(index, __ballot_sync(~0u, index >= 0));
    }
  }
};

// out[back[s, j]] = x[s] for each s and j. Other rows, whose `take` is outside of x, are left as they are, or zeros.
template <bool kZeros>
struct SpreadRows : RowMoves {
  static constexpr int kVectors = 8;  // of a lane
  static constexpr int kBlocks = 8;   // of a multiprocessor

  struct Args {
    const uint4* x;   // [sources, vectors]
    const int* take;  // [rows], read only for zeros
    const int* back;  // [sources, uses]
    uint4* out;       // [rows, vectors]
    long sources, rows, vectors;
    int uses;
  };

  static __device__ __forceinline__ void run(const Args& a) {
    for_pieces<32 * kVectors>(a.sources, a.vectors, [&](long source, long first) {
      for_uses(a.back + source * a.uses, a.uses, [&](int index, unsigned there) {
        if (there == 0) return;
        uint4 v[kVectors];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          if (first + i * 32 < a.vectors) v[i] = a.x[source * a.vectors + first + i * 32];
        }
        for (; there != 0; there &= there - 1) {
          const long row = __shfl_sync(~0u, index, __ffs(int(there)) - 1);
          if (row >= a.rows) continue;
#pragma unroll
          for (int i = 0; i < kVectors; ++i) {
            if (first + i * 32 < a.vectors) __stcs(a.out + row * a.vectors + first + i * 32, v[i]);
          }
        }
      });
    });
    if constexpr (kZeros) put_zeros(a);
  }

  static __device__ __forceinline__ void put_zeros(const Args& a) {
    constexpr int kRows = 8;  // of a warp at a time
    const long lane = threadIdx.x % 32, warps = kThreads / 32;
    for (long first = (blockIdx.x * warps + threadIdx.x / 32) * kRows; first < a.rows;
         first += gridDim.x * warps * kRows) {
      const bool is_none = lane < kRows && first + lane < a.rows && u32(a.take[first + lane]) >= a.sources;
      for (unsigned none = __ballot_sync(~0u, is_none); none != 0; none &= none - 1) {
        uint4* row = a.out + (first + __ffs(int(none)) - 1) * a.vectors;
        for (long i = lane; i < a.vectors; i += 32) __stcs(row + i, uint4{0, 0, 0, 0});
      }
    }
  }
};

// out[r] = x[take[r]], zeros where that is outside of x.
struct TakeRows : RowMoves {
  static constexpr int kVectors = 4;  // of a lane
  static constexpr int kBlocks = 8;   // of a multiprocessor

  struct Args {
    const uint4* x;   // [sources, vectors]
    const int* take;  // [rows]
    uint4* out;       // [rows, vectors]
    long sources, rows, vectors;
    int terms;  // 1
  };

  static __device__ __forceinline__ void run(const Args& a) {
    for_pieces<32 * kVectors>(a.rows, a.vectors, [&](long row, long first) {
      const long source = u32(a.take[row]);
      uint4 v[kVectors] = {};
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (source < a.sources && first + i * 32 < a.vectors) v[i] = a.x[source * a.vectors + first + i * 32];
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (first + i * 32 < a.vectors) a.out[row * a.vectors + first + i * 32] = v[i];
      }
    });
  }
};

// out[r] = the sum of x[take[r, j]] over j, in order, in f32.
template <class T>
struct AddRows : RowMoves {
  static constexpr int kVectors = 4, kAtOnce = 4;  // of a lane; terms that are on their way together
  static constexpr int kBlocks = 4;
  static constexpr int kElements = 16 / int(sizeof(T));

  struct Args {
    const uint4* x;   // [sources, vectors]
    const int* take;  // [rows, terms]
    uint4* out;       // [rows, vectors]
    long sources, rows, vectors;
    int terms;
  };

  static __device__ __forceinline__ void run(const Args& a) {
    for_pieces<32 * kVectors>(a.rows, a.vectors, [&](long row, long first) {
      f32 sum[kVectors][kElements] = {};
      for_uses(a.take + row * a.terms, a.terms, [&](int index, unsigned there) {
        there &= __ballot_sync(~0u, index < a.sources);
        while (there != 0) {
          uint4 v[kAtOnce][kVectors];
          unsigned next = there;
#pragma unroll
          for (int t = 0; t < kAtOnce; ++t) {
            if (next == 0) continue;
            const long source = __shfl_sync(~0u, index, __ffs(int(next)) - 1);
            next &= next - 1;
#pragma unroll
            for (int i = 0; i < kVectors; ++i) {
              if (first + i * 32 < a.vectors) v[t][i] = a.x[source * a.vectors + first + i * 32];
            }
          }
#pragma unroll
          for (int t = 0; t < kAtOnce; ++t) {
            if (there == 0) continue;
            there &= there - 1;
#pragma unroll
            for (int i = 0; i < kVectors; ++i) add(sum[i], v[t][i]);
          }
        }
      });
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (first + i * 32 < a.vectors) a.out[row * a.vectors + first + i * 32] = rounded(sum[i]);
      }
    });
  }

  static __device__ __forceinline__ void add(f32 (&sum)[kElements], const uint4& v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        sum[i] += bits_as<f32>(words[i]);
      } else {
        sum[2 * i] += decode_low(T{}, words[i]);
        sum[2 * i + 1] += decode_high(T{}, words[i]);
      }
    }
  }
  static __device__ __forceinline__ uint4 rounded(const f32 (&sum)[kElements]) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        words[i] = bits_as<u32>(sum[i]);
      } else {
        words[i] = encode_pair(T{}, sum[2 * i], sum[2 * i + 1]);
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

}  // namespace jf
