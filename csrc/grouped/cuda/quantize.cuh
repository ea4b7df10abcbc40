// Matrices of floats as e4m3 with scales, read once: in strips of columns, each with a scale for every column, or in
// blocks of 128 x 128; stored as they are or transposed, which products of 8-bit floats want of weights along k.
//
// Needs sm_90a, 16-byte aligned rows. A strip is 128 bytes wide; a block of threads keeps `rows` of it, a multiple of
// 32, in shared memory, swizzled as tensor copies do it, and a cluster of them all rows of the matrix.
#pragma once

#include "codegen/cuda_lanes.cuh"
#include "grouped/cuda/magnitudes.cuh"
#include "grouped/cuda/ptx_quantize.cuh"

namespace jf {

template <class T>
JF_FUNCTION f32 value_of(u32 word, int half) {
  if constexpr (is_same<T, f32>) {
    return bits_as<f32>(word);
  } else {
    return half ? decode_high(T{}, word) : decode_low(T{}, word);
  }
}

// kColumns: a scale for each column of strips; else one for each 128 x 128 elements, of kStrips strips.
template <class T, bool kColumns, bool kTranspose>
struct Quantizer {
  static constexpr int kThreads = 256, kWarps = kThreads / 32, kRowBytes = 128, kChunk = 32;
  static constexpr int kValues = Magnitudes<T>::kValues, kWidth = kRowBytes / int(sizeof(T));
  static_assert(kWarps * 16 == kRowBytes, "a warp has 16 bytes of every row");
  static constexpr int kStrips = kColumns ? 1 : 128 / kWidth;
  static constexpr int kScales = kColumns ? kWidth : 1;
  static_assert(kTranspose || !kColumns, "scales of columns are those of rows of the transposed matrix");

  struct Shared {
    u32 own[kScales], all[kScales];  // largest magnitudes as bits, of this block and of its cluster
    unsigned long long loaded;
  };

  struct Args {
    unsigned char* out;
    f32* scales;
    long rows, columns, pitch;  // of a matrix; bytes of a row of the result
    int own_rows, blocks;       // of a block of threads; of a cluster
  };

  static __device__ __forceinline__ u32 four(f32 a, f32 b, f32 c, f32 d, u32 order = 0x5410) {
    return __byte_perm(ptx::e4m3x2_of_scaled(a, b), ptx::e4m3x2_of_scaled(c, d), order);
  }

  // `memory`: aligned to 1024 bytes.
  static __device__ __forceinline__ void run(char* memory, const TensorMap& map, const Args& p) {
    const unsigned tile = ptx::shared_address(memory);
    const int strip_bytes = p.own_rows * kRowBytes;
    Shared& shared = *reinterpret_cast<Shared*>(memory + kStrips * strip_bytes);
    const unsigned loaded = ptx::shared_address(&shared.loaded);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;

    // Neighbouring clusters have neighbouring columns.
    const int rank = blockIdx.x % p.blocks;
    long at = blockIdx.x / p.blocks;
    const long wide = kStrips * kWidth, tiles = (p.columns + wide - 1) / wide;
    const long column = at % tiles * wide;
    at /= tiles;
    const long heights = kColumns ? 1 : (p.rows + p.own_rows - 1) / p.own_rows;
    const long first = kColumns ? long(rank) * p.own_rows : at % heights * p.own_rows, matrix = at / heights;

    if (thread < kScales) shared.own[thread] = shared.all[thread] = 0;
    if (thread == 0) {
      ptx::mbarrier_init(loaded, 1);
      ptx::mbarrier_init_fence();
      ptx::mbarrier_arrive_expect(loaded, kStrips * strip_bytes);
      for (int strip = 0; strip < kStrips; ++strip) {
        for (int row = 0; row < p.own_rows; row += kChunk) {
          ptx::tile_load(tile + strip * strip_bytes + row * kRowBytes, &map, loaded, int(column) + strip * kWidth,
                         int(first) + row, int(matrix));
        }
      }
    }
    __syncthreads();
    if (p.blocks > 1) ptx::cluster_arrive_release();
    ptx::mbarrier_wait(loaded, 0);

    // A thread reads the same 16 bytes' place of every 32nd row: the same columns.
    u32 most[4] = {};
    {
      const int chunk = thread % 8, row = thread / 8;
      const unsigned from = tile + row * kRowBytes + chunk * 16;
#pragma unroll 4
      for (int offset = 0; offset < kStrips * strip_bytes; offset += kThreads / 8 * kRowBytes) {
        const int4 words = ptx::ld_shared4(from + offset);
        most[0] = Magnitudes<T>::most(most[0], words.x);
        most[1] = Magnitudes<T>::most(most[1], words.y);
        most[2] = Magnitudes<T>::most(most[2], words.z);
        most[3] = Magnitudes<T>::most(most[3], words.w);
      }
    }
    f32 inverse[kValues];
    if constexpr (kColumns) {
      // Four rows of a warp, whose chunks are swizzled by the row's number.
#pragma unroll
      for (int step = 9; step <= 18; step += 9) {
#pragma unroll
        for (int i = 0; i < 4; ++i) most[i] = Magnitudes<T>::most(most[i], __shfl_xor_sync(~0u, most[i], step));
      }
      if (lane < 8) {
        const int word = (lane ^ warp * 4 % 8) * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < kValues; ++j) {
            atomicMax(&shared.own[(word + i) * kValues + j], bits_as<u32>(value_of<T>(most[i], j)));
          }
        }
      }
      __syncthreads();
      const u32* result = shared.own;
      if (p.blocks > 1) {
        ptx::cluster_wait();
        if (warp < p.blocks) {
#pragma unroll
          for (int j = 0; j < kValues; ++j) {
            const int value = j * 32 + lane;
            const unsigned there = ptx::in_cluster(ptx::shared_address(&shared.all[value]), warp);
            ptx::raise_in_cluster(there, shared.own[value]);
          }
        }
        ptx::cluster_meet();
        result = shared.all;
      }
      if (rank == 0 && thread < kScales && column + thread < p.columns) {
        f32 unused;
        p.scales[matrix * p.columns + column + thread] = scale_of(bits_as<f32>(result[thread]), unused);
      }
#pragma unroll
      for (int i = 0; i < kValues; ++i) scale_of(bits_as<f32>(result[own_word() * kValues + i]), inverse[i]);
    } else {
      f32 own = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < kValues; ++j) own = ptx::max_nan(own, value_of<T>(most[i], j));
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) own = ptx::max_nan(own, __shfl_xor_sync(~0u, own, step));
      if (lane == 0) atomicMax(&shared.own[0], bits_as<u32>(own));
      __syncthreads();
      const f32 scale = scale_of(bits_as<f32>(shared.own[0]), inverse[0]);
#pragma unroll
      for (int i = 1; i < kValues; ++i) inverse[i] = inverse[0];
      if (thread == 0) {
        const long height = first / p.own_rows, place = column / wide;
        p.scales[kTranspose ? (matrix * tiles + place) * heights + height
                            : (matrix * heights + height) * tiles + place] = scale;
      }
    }
    if constexpr (kTranspose) {
      store_transposed(tile, strip_bytes, p, matrix, first, column, inverse);
    } else {
      store_rows(tile, strip_bytes, p, matrix, first, column, inverse[0]);
    }
  }

  // Which word of a strip's rows a thread has: a warp has 16 bytes of them, eight lanes the same.
  static __device__ __forceinline__ int own_word() { return threadIdx.x / 32 * 4 + threadIdx.x % 32 / 8; }

  // Eight lanes have a word of each of 16 rows, so together 128 bytes of each of its columns. Lane l reads its rows in
  // the order i ^ l, so that no two are in one bank, and puts the bytes in order as it joins them.
  static __device__ __forceinline__ void store_transposed(unsigned tile, int strip_bytes, const Args& p, long matrix,
                                                          long first, long column, const f32 (&inverse)[kValues]) {
    const int eighth = threadIdx.x % 8, warp = threadIdx.x / 32;
    const bool swap = eighth & 4;
    const u32 order = eighth & 2 ? (eighth & 1 ? 0x0145 : 0x1054) : (eighth & 1 ? 0x4501 : 0x5410);
    unsigned places[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) places[i] = (i ^ eighth) * kRowBytes + (warp ^ i ^ eighth) * 16 + own_word() % 4 * 4;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const long n = column + strip * kWidth + own_word() * kValues;
      unsigned char* const out = p.out + (matrix * p.columns + n) * p.pitch + first;
      for (int row = eighth * 16; row < p.own_rows; row += 128) {
        const unsigned from = tile + strip * strip_bytes + row * kRowBytes;
        u32 words[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) words[i] = ptx::ld_shared(from + places[i % 8] + i / 8 * 8 * kRowBytes);
#pragma unroll
        for (int j = 0; j < kValues; ++j) {
          const auto x = [&](int i) { return value_of<T>(words[i], j) * inverse[j]; };
          const auto joined = [&](int i) { return int(four(x(i), x(i + 1), x(i + 2), x(i + 3), order)); };
          const int a = joined(0), b = joined(4), c = joined(8), d = joined(12);
          if (n + j < p.columns && first + row < p.pitch) {
            *reinterpret_cast<int4*>(out + j * p.pitch + row) =
                int4{swap ? b : a, swap ? a : b, swap ? d : c, swap ? c : d};
          }
        }
      }
    }
  }

  // A thread has 16 elements of a row.
  static __device__ __forceinline__ void store_rows(unsigned tile, int strip_bytes, const Args& p, long matrix,
                                                    long first, long column, f32 inverse) {
    constexpr int kPieces = kStrips * kWidth / 16, kWords = 16 / kValues;
    const int piece = threadIdx.x % kPieces, strip = piece / (kWidth / 16);
    const long n = column + piece * 16;
    for (int row = threadIdx.x / kPieces; row < p.own_rows; row += kThreads / kPieces) {
      if (first + row >= p.rows || n >= p.pitch) continue;
      u32 words[kWords];
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const int chunk = piece % (kWidth / 16) * (kWords / 4) + i;
        const int4 part = ptx::ld_shared4(tile + strip * strip_bytes + row * kRowBytes + (chunk ^ row % 8) * 16);
        words[i * 4] = u32(part.x), words[i * 4 + 1] = u32(part.y);
        words[i * 4 + 2] = u32(part.z), words[i * 4 + 3] = u32(part.w);
      }
      const auto x = [&](int i) { return value_of<T>(words[i / kValues], i % kValues) * inverse; };
      int4 result;
      result.x = int(four(x(0), x(1), x(2), x(3)));
      result.y = int(four(x(4), x(5), x(6), x(7)));
      result.z = int(four(x(8), x(9), x(10), x(11)));
      result.w = int(four(x(12), x(13), x(14), x(15)));
      *reinterpret_cast<int4*>(p.out + (matrix * p.rows + first + row) * p.pitch + n) = result;
    }
  }
};

}  // namespace jf
