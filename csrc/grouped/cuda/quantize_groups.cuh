// Rows of groups as e4m3 with a scale for each column of each group, transposed: each row read once where it lies, each
// column stored once. Products of 8-bit floats want operands so that are summed over the rows of groups.
//
// A place is a row of the result's columns: groups follow each other there, each filled up with zeros to a multiple of
// four places. A block of threads has 128 places by 64 columns, a thread four places by eight columns: a word for each
// column, which go through 8 KiB of shared memory. Needs multiples of 128 places and 8 columns, 16-byte aligned arrays.
#pragma once

#include "codegen/cuda_lanes.cuh"
#include "grouped/cuda/ptx_quantize.cuh"

namespace jf {

template <class T>
struct GroupQuantizer {
  static constexpr int kThreads = 256, kPlaces = 128, kColumns = 64;
  static constexpr int kQuad = 4, kOwn = 8;        // places and columns of a thread
  static constexpr int kWords = kPlaces / kQuad;   // of a column
  static constexpr int kPieces = kColumns / kOwn;  // of a row: neighbouring lanes read it
  static constexpr int kVectors = kOwn * int(sizeof(T)) / 16;
  static constexpr int kValues = 4 / int(sizeof(T));  // of a word
  static constexpr int kBytes = kColumns * kWords * 4;
  static_assert(kWords * kPieces == kThreads, "every quad of every piece has a thread");

  struct Args {
    const T* x;           // [rows, columns]
    const int* row;       // of each place; `rows` where there is none
    const int* group;     // of each place; one for all four of a quad
    const f32* inverses;  // of the scales, [groups, columns]
    u8* out;              // [columns, places]
    int rows, columns;
    long places;
  };

  // Columns have their words in different orders, so that lanes that write or read at once are in different banks.
  static __device__ __forceinline__ unsigned place_of(unsigned column, unsigned quad) {
    return column * kWords + (quad ^ column / kOwn % 8 * 4);
  }

  // `memory`: kBytes, aligned to 16 bytes.
  static __device__ __forceinline__ void run(char* memory, const Args& p) {
    u32* tile = reinterpret_cast<u32*>(memory);
    // Neighbouring blocks have neighbouring columns of the same rows.
    const unsigned across = unsigned(p.columns + kColumns - 1) / kColumns;
    const int place = int(blockIdx.x / across * kPlaces), column = int(blockIdx.x % across * kColumns);
    round(tile, p, place, column);
    __syncthreads();
    store(tile, p, place, column);
  }

  static __device__ __forceinline__ void round(u32* tile, const Args& p, int first_place, int first_column) {
    const unsigned piece = threadIdx.x % kPieces, quad = threadIdx.x / kPieces;
    const int column = first_column + int(piece * kOwn), place = first_place + int(quad * kQuad);
    if (column >= p.columns) return;
    const int4 four = *reinterpret_cast<const int4*>(p.row + place);
    const int rows[kQuad] = {four.x, four.y, four.z, four.w};
    uint4 x[kQuad][kVectors] = {};
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if (rows[i] >= p.rows) continue;
      const auto* from = reinterpret_cast<const uint4*>(p.x + long(rows[i]) * p.columns + column);
#pragma unroll
      for (int j = 0; j < kVectors; ++j) x[i][j] = from[j];
    }
    const auto* scales = reinterpret_cast<const uint4*>(p.inverses + long(p.group[place]) * p.columns + column);
    const uint4 inverses[2] = {scales[0], scales[1]};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const f32 inverse = bits_as<f32>(word_of(inverses[i / 4], i % 4));
      f32 v[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        // Zero even where the scale is NaN.
        v[j] = rows[j] < p.rows ? value_of(x[j], i) * inverse : 0;
      }
      tile[place_of(piece * kOwn + i, quad)] = ptx::e4m3x2_of_scaled(v[0], v[1]) | ptx::e4m3x2_of_scaled(v[2], v[3])
                                                                                       << 16;
    }
  }

  static __device__ __forceinline__ void store(const u32* tile, const Args& p, int first_place, int first_column) {
    constexpr int kLanes = kPlaces / 16;  // of a column
#pragma unroll
    for (int i = 0; i < kColumns; i += kThreads / kLanes) {
      const unsigned column = i + threadIdx.x / kLanes, part = threadIdx.x % kLanes;
      if (first_column + int(column) >= p.columns) continue;
      *reinterpret_cast<uint4*>(p.out + long(first_column + int(column)) * p.places + first_place + part * 16) =
          *reinterpret_cast<const uint4*>(tile + place_of(column, part * 4));
    }
  }

  static __device__ __forceinline__ u32 word_of(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }
  static __device__ __forceinline__ f32 value_of(const uint4 (&vectors)[kVectors], int i) {
    const u32 word = word_of(vectors[i / kValues / 4], i / kValues % 4);
    if constexpr (is_same<T, f32>) {
      return bits_as<f32>(word);
    } else {
      return i % 2 ? decode_high(T{}, word) : decode_low(T{}, word);
    }
  }
};

}  // namespace jf
