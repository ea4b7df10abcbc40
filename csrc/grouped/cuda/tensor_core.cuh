// Products of one output tile on the tensor cores, for sm_80 and later: mma.sync fed by a multi-stage cp.async
// pipeline.
//
//   tile      kM x kN per block, one warp per (kM / kWarpsM) x (kN / kWarpsN); kStages slices of kK contraction indices
//   threads   32 * kWarpsM * kWarpsN
//   shared    kStages * (kM + kN) * kK * sizeof(element), then the searches' scratch; see kSharedBytes
//   aligned   base addresses to 16 bytes; rows only to the access of the layout
//
// bf16 and f16 multiply exactly and accumulate in f32. f32 operands are split in two tf32 parts (big and small) and
// three products are summed, eight contraction indices at a time: tensor cores cut sums off where f32 rounds them, so
// that a long chain of them drifts towards zero (H. Ootomo, R. Yokota, "Recovering single precision accuracy from
// Tensor Cores", 2022). What eight indices give is added in f32, so that the error is that of f32 itself. NOTE: the
// small part of an infinity is NaN, so an infinite f32 operand gives NaN where f32 arithmetic might give infinity.
#pragma once

#include "grouped/cuda/operand.cuh"
#include "grouped/cuda/tf32_parts.cuh"

namespace jf::grouped {

template <class In, class Out_, class Tile_, class Layout_>
struct TensorCore {
  using Lhs = In;
  using Rhs = In;
  using Out = Out_;
  using Tile = Tile_;
  using Layout = Layout_;
  static constexpr int kThreads = Tile::kThreads;

  static constexpr int kWarpM = Tile::kM / Tile::kWarpsM, kWarpN = Tile::kN / Tile::kWarpsN;
  static constexpr int kBlocksM = kWarpM / 16, kBlocksN = kWarpN / 16;  // fragments of a warp
  static_assert((kWarpM & (kWarpM - 1)) == 0 && (kWarpN & (kWarpN - 1)) == 0 && kWarpM >= 16 && kWarpN >= 16,
                "a warp's tile must be a power of two, at least 16, each way");
  static_assert(Tile::kStages >= 2, "one slice is computed while another is copied");

  using LhsSlice = Operand<In, true, Layout::kLhsKMajor, Tile::kM, Tile::kK, kThreads, Layout::kLhsAccess>;
  using RhsSlice = Operand<In, false, Layout::kRhsKMajor, Tile::kN, Tile::kK, kThreads, Layout::kRhsAccess>;
  static constexpr int kSteps = Tile::kK / LhsSlice::kMmaDepth;  // mma steps of one slice

  // Results pass through shared memory, sixteen rows of a warp at a time; the padding spreads rows over the banks.
  static constexpr int kRowPitch = kWarpN * static_cast<int>(sizeof(Out)) + (sizeof(Out) == 2 ? 16 : 32);

  struct alignas(128) Shared {
    struct Stage {
      alignas(128) unsigned char lhs[LhsSlice::kBytes];
      alignas(128) unsigned char rhs[RhsSlice::kBytes];
    };
    union {
      Stage stages[Tile::kStages];
      alignas(16) unsigned char results[kThreads / 32][16][kRowPitch];
    };
  };

  Shared& shared;
  unsigned lane, warp_row, warp_column;
  float sums[kBlocksM][2 * kBlocksN][4];

  __device__ __forceinline__ explicit TensorCore(Shared& memory) : shared(memory) {
    const unsigned warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    warp_row = warp % Tile::kWarpsM * kWarpM;
    warp_column = warp / Tile::kWarpsM * kWarpN;
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * kBlocksN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
      }
    }
  }

  struct Fragments {
    unsigned lhs[kBlocksM][4];
    unsigned rhs[kBlocksN][4];
  };

  // sums += lhs * rhs over `depth` contraction indices. The views start at the tile's first row, column and index.
  __device__ __forceinline__ void multiply(const View<const In>& lhs, const View<const In>& rhs, int depth) {
    const int slices = cdiv(depth, Tile::kK);
    const unsigned base = ptx::shared_address(&shared);
    constexpr unsigned kStageBytes = sizeof(typename Shared::Stage);
    constexpr unsigned kRhsOffset = LhsSlice::kBytes;
    typename LhsSlice::Source lhs_source(lhs);
    typename RhsSlice::Source rhs_source(rhs);
    int copied = 0;
    unsigned write = base;
    const auto copy_lhs = [&] {
      if (copied >= slices) return;
      LhsSlice::copy(write, lhs_source);
      lhs_source.advance();
    };
    // Closes the group of copies, also an empty one past the end, so that waiting can count groups.
    const auto copy_rhs = [&] {
      if (copied < slices) {
        RhsSlice::copy(write + kRhsOffset, rhs_source);
        rhs_source.advance();
      }
      ++copied;
      write = write + kStageBytes == base + Tile::kStages * kStageBytes ? base : write + kStageBytes;
      ptx::cp_async_commit();
    };
#pragma unroll 1
    for (int s = 0; s < Tile::kStages - 1; ++s) {
      copy_lhs();
      copy_rhs();
    }

    const unsigned lhs_lane = LhsSlice::lane_offset(warp_row), rhs_lane = RhsSlice::lane_offset(warp_column);
    unsigned read = base;
    Fragments fragments[2];
    const auto load = [&](Fragments& to, int step) {
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) LhsSlice::fragment(to.lhs[i], read, lhs_lane, i, step);
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) RhsSlice::fragment(to.rhs[j], read + kRhsOffset, rhs_lane, j, step);
    };

    ptx::cp_async_wait<Tile::kStages - 2>();
    __syncthreads();
    load(fragments[0], 0);
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps - 1) {
          // The next slice has arrived, and every warp holds the rest of this one in registers: its stage is free.
          ptx::cp_async_wait<Tile::kStages - 2>();
          __syncthreads();
          read = read + kStageBytes == base + Tile::kStages * kStageBytes ? base : read + kStageBytes;
        }
        load(fragments[(step + 1) % 2], (step + 1) % kSteps);
        // Two steps share the work of starting copies, where there are two before the barrier.
        if (step == 0) copy_lhs();
        if (step == (kSteps > 2 ? 1 : 0)) copy_rhs();
        accumulate(fragments[step % 2]);
      }
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  // Writes the sums into the view, which starts at the tile's first row and column.
  __device__ __forceinline__ void store(const View<Out>& out) {
    auto& results = shared.results[threadIdx.x / 32];
    const int rows = out.outer - static_cast<int>(warp_row), columns = out.inner - static_cast<int>(warp_column);
    Out* data = out.data + warp_row * out.pitch + warp_column;
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * kBlocksN; ++j) {
        const int column = j * 8 + static_cast<int>(lane) % 4 * 2;
        put_pair(&results[lane / 4][column * sizeof(Out)], sums[i][j][0], sums[i][j][1]);
        put_pair(&results[lane / 4 + 8][column * sizeof(Out)], sums[i][j][2], sums[i][j][3]);
      }
      __syncwarp();
      using Word = typename WordOf<Layout::kOutAccess>::Type;
      constexpr int kPerWord = Layout::kOutAccess / static_cast<int>(sizeof(Out)), kWords = kWarpN / kPerWord;
      constexpr int kPasses = 16 * kWords / 32, kBatch = kPasses < 4 ? kPasses : 4;
#pragma unroll(Layout::kOutAccess == 16 ? kPasses / kBatch : 1)
      for (int pass = 0; pass < kPasses; pass += kBatch) {
        const auto row = [&](int p) { return ((pass + p) * 32 + static_cast<int>(lane)) / kWords; };
        const auto column = [&](int p) { return ((pass + p) * 32 + static_cast<int>(lane)) % kWords * kPerWord; };
        Word words[kBatch];
#pragma unroll
        for (int p = 0; p < kBatch; ++p) {
          words[p] = *reinterpret_cast<const Word*>(&results[row(p)][column(p) * sizeof(Out)]);
        }
#pragma unroll
        for (int p = 0; p < kBatch; ++p) {
          Out* to = data + (i * 16 + row(p)) * out.pitch + column(p);
          if (i * 16 + row(p) >= rows || column(p) >= columns) continue;
          if constexpr (Layout::kOutAccess == 16) {
            ptx::st_global(to, words[p]);
          } else {
            *reinterpret_cast<Word*>(to) = words[p];
          }
        }
      }
      __syncwarp();
    }
  }

 private:
  __device__ __forceinline__ void accumulate(const Fragments& f) {
    if constexpr (sizeof(In) == 4) {
      accumulate_split(f);
    } else {
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
        for (int j = 0; j < 2 * kBlocksN; ++j) {
          const unsigned b0 = f.rhs[j / 2][j % 2 * 2], b1 = f.rhs[j / 2][j % 2 * 2 + 1];
          multiply_add(sums[i][j], f.lhs[i], b0, b1, In());
        }
      }
    }
  }

  static __device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                                      bf16) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                                      f16) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }

  static __device__ __forceinline__ void split(unsigned word, unsigned& big, unsigned& small) {
    const Tf32Parts parts = tf32_parts(word);
    big = parts.big;
    small = parts.small;
  }

  __device__ __forceinline__ void accumulate_split(const Fragments& f) {
    unsigned rhs_big[kBlocksN][4], rhs_small[kBlocksN][4];
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
      for (int w = 0; w < 4; ++w) split(f.rhs[j][w], rhs_big[j][w], rhs_small[j][w]);
    }
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
      unsigned big[4], small[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) split(f.lhs[i][w], big[w], small[w]);
      float step[2 * kBlocksN][4] = {};
      // The small products first: the sum then rounds them least.
#pragma unroll
      for (int j = 0; j < 2 * kBlocksN; ++j) {
        ptx::mma_m16n8k8_tf32(step[j], small, rhs_big[j / 2][j % 2 * 2], rhs_big[j / 2][j % 2 * 2 + 1]);
      }
#pragma unroll
      for (int j = 0; j < 2 * kBlocksN; ++j) {
        ptx::mma_m16n8k8_tf32(step[j], big, rhs_small[j / 2][j % 2 * 2], rhs_small[j / 2][j % 2 * 2 + 1]);
      }
#pragma unroll
      for (int j = 0; j < 2 * kBlocksN; ++j) {
        ptx::mma_m16n8k8_tf32(step[j], big, rhs_big[j / 2][j % 2 * 2], rhs_big[j / 2][j % 2 * 2 + 1]);
      }
#pragma unroll
      for (int j = 0; j < 2 * kBlocksN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] += step[j][e];
      }
    }
  }

  static __device__ __forceinline__ void put_pair(unsigned char* to, float first, float second) {
    if constexpr (sizeof(Out) == 4) {
      *reinterpret_cast<float2*>(to) = float2{first, second};
    } else {
      *reinterpret_cast<unsigned*>(to) = Narrow<Out>::pair(first, second);
    }
  }
};

}  // namespace jf::grouped
