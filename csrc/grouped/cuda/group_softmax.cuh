// Softmax over the rows of groups, column by column, with every row read once: tiles stay in shared memory from the
// fold of their group to its result.
//
// One block a multiprocessor. A strip is kColumns columns of a group; its tiles of kRows rows are one run where they
// are at most kRun and else runs of at most kSplit, and run r is of block r % blocks. Four kinds of warps: one copies
// tiles into a ring of kSlots, others fold a run to its largest and its sum of powers, others join what the runs of a
// strip have, others store results. A strip of one run asks nobody. Else runs publish words of 64 bits that say by
// themselves that they are there, being all ones before (the launcher fills them): no counter, no fence.
//
// Why nobody waits for ever: all blocks run at once (a cooperative launch), each takes its runs in increasing order, a
// strip has at most one run in a block, and a run that stays in the ring fits it (the launcher's rule). So the first
// strip that is not done has its runs, with all before them stored, at the heads of their blocks' rings: they are
// copied, folded, published, joined, stored.
//
// Arrays begin and rows follow at multiples of 16 bytes. Rows of no group become zeros.
#pragma once

#include "codegen/cuda_lanes.cuh"
#include "grouped/cuda/ptx_hopper.cuh"
#include "grouped/cuda/ptx_quantize.cuh"

namespace jf {

template <class T, bool kLog, int kRows, int kBytes, int kSlots, int kRun, int kSplit, int kGroups>
struct GroupSoftmax {
  static constexpr f32 kLog2E = 1.44269504f;
  static constexpr int kFolding = 8, kJoining = 3, kStoring = 4;  // warps
  static constexpr int kThreads = 32 * (1 + kFolding + kJoining + kStoring);
  static constexpr int kColumns = kBytes / int(sizeof(T)), kOwn = kColumns / 32;  // of a lane
  static constexpr int kWords = kBytes / 32 / 4, kColumnWarps = kColumns / 32;
  static constexpr int kFew = 24 / kOwn;            // so many runs are read by each of them; more share the columns
  static constexpr int kAtOnce = 9;                 // parts that a lane reads at once where runs share the columns
  static constexpr int kFinals = (kSlots + 1) / 2;  // runs that wait for their results
  // Tiles that are on their way at a time. Words between blocks wait behind them: fewer where runs share the columns.
  static constexpr int kAhead = 3, kAheadShared = 2;
  static constexpr int kHeld = kRows < 16 * kFolding ? kRows / kFolding : 16;  // rows of a tile in a warp's registers
  // Words of a row that a lane stores: a warp has one row of 16-bit numbers at a time, since several are slower.
  static constexpr int kChunk = sizeof(T) == 4 ? 4 : kWords;
  static constexpr int kLanes = kBytes / (4 * kChunk), kAtATime = 32 / kLanes;  // of a row; rows of a warp
  static_assert(kRows % (kFolding * kHeld) == 0 && kRows % (kStoring * kAtATime) == 0 && kOwn % 2 == 0 &&
                    kColumnWarps <= kFolding,
                "warps have equal shares");
  static_assert(kRun < kSlots && kSplit <= kRun, "a run fits the ring, and the next one's first tile");
  static_assert(kSlots <= 2 * kFinals, "a wait tells neighbouring phases apart: those who fold are no further ahead");

  // The largest and the sum of powers relative to it; later the shift and what results are multiplied by, or lose.
  struct Part {
    f32 most, sum;
  };
  struct alignas(16) Line {  // a lane's columns
    Part of[kOwn];
  };
  struct alignas(16) Run {
    int group, strip, number, all, tiles, row, end;  // the first row; where the group ends
  };
  struct Memory {
    alignas(128) char tile[kSlots][kRows * kBytes];
    Run started[kSlots];  // the run whose first tile is in a slot
    Part part[2][kFolding][kColumns];
    Part final[kFinals][kColumns];
    u64 full[kSlots], empty[kSlots], made[kFinals], used[kFinals];
    int row[kGroups + 1], run[kGroups + 1];      // the first of a group; runs of one strip
    int shared[kGroups + 1], wide[kGroups + 1];  // of its runs among those of several, of more than kFew
  };
  struct Args {
    const int* extents;
    T* out;
    u64* words;  // [strips, parts, kColumns], [strips, joined, kColumns]: all ones
    int rows, columns, groups, parts, joined;
  };
  struct Ring {
    unsigned at = 0, turn = 0;
    template <int kSize>
    __device__ __forceinline__ void next() {
      if (++at == kSize) at = 0, turn ^= 1;
    }
  };

  static __device__ __forceinline__ unsigned address(const void* p) { return ptx::shared_address(p); }
  // Nothing is infinitely far from an infinite shift; NaN and infinities reach the results by the sums.
  static __device__ __forceinline__ f32 shift(f32 most) { return most == -__int_as_float(0x7f800000) ? 0 : most; }
  // What powers are relative to. In softmax of 16-bit numbers e^(x - most) is 2^(x * by - at), where `at` is most * by
  // rounded: one multiply-add, as exact as the difference. Where most * log2(e) overflows, elements of a column are the
  // largest or far below it, by 2^118 at least: a small factor tells. Logarithms subtract first, so that of one row the
  // sum is 1 and its logarithm 0.
  struct Reference {
    static constexpr bool kMultiplyAdd = sizeof(T) == 2 && !kLog;
    f32 by, at;
    __device__ __forceinline__ explicit Reference(f32 most) : by(kLog2E), at(most) {
      if constexpr (kMultiplyAdd) {
        if (is_same<T, bf16> && fabsf(most) > 1e38f) by = 0x1p-90f;
        at = __fmul_rn(most, by);
      }
    }
    __device__ __forceinline__ f32 power(f32 x) const {
      if constexpr (kMultiplyAdd) {
        return ptx::exp2_approx(fmaf(x, by, -at));
      } else if constexpr (sizeof(T) == 2) {
        return ptx::exp2_approx((x - at) * by);
      } else {
        return expf(x - at);
      }
    }
    // What powers relative to another column's largest are multiplied by.
    __device__ __forceinline__ f32 between(f32 most) const {
      if constexpr (kMultiplyAdd) {
        return ptx::exp2_approx(__fmul_rn(most, by) - at);
      } else {
        return power(most);
      }
    }
  };

  // ---- which run is whose ----

  static __device__ __forceinline__ int runs_of(int tiles, int blocks) {
    const int runs = tiles <= kRun ? min(tiles, 1) : min((tiles + kSplit - 1) / kSplit, blocks);
    return 2 * runs > blocks && tiles >= blocks ? blocks : runs;  // where most have one, all have
  }
  // Warp: the sums up to each lane's number, none above `limit`.
  static __device__ __forceinline__ int sums(int x, int limit) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned by = 1; by < 32; by *= 2) {
      const int other = int(__shfl_up_sync(~0u, unsigned(x), by));
      if (lane >= by) x = min(x + other, limit);
    }
    return x;
  }
  // Warp. Extents below 0 are 0, and groups end with the array.
  static __device__ __forceinline__ void make_table(Memory& m, const Args& a) {
    const int lane = int(threadIdx.x % 32), blocks = int(gridDim.x);
    int rows = 0, runs = 0, shared = 0, wide = 0;
    if (lane == 0) m.row[0] = m.run[0] = m.shared[0] = m.wide[0] = 0;
    const auto carry = [&](int& before, int x, int* to, int limit) {
      const int end = min(before + sums(x, limit), limit);
      if (to != nullptr) *to = end;
      before = int(__shfl_sync(~0u, unsigned(end), 31));
      return end;
    };
    constexpr int kMost = 1 << 30;
    for (int g = 0; g < a.groups; g += 32) {
      const bool inside = g + lane < a.groups;
      const int before = rows, at = g + lane + 1;
      const int end =
          carry(rows, inside ? min(max(a.extents[g + lane], 0), a.rows) : 0, inside ? m.row + at : nullptr, a.rows);
      const int begin = int(__shfl_up_sync(~0u, unsigned(end), 1));
      const int all = runs_of((end - (lane == 0 ? before : begin) + kRows - 1) / kRows, blocks);
      carry(runs, all, inside ? m.run + at : nullptr, kMost);
      carry(shared, all > 1 ? all : 0, inside ? m.shared + at : nullptr, kMost);
      carry(wide, all > kFew, inside ? m.wide + at : nullptr, kMost);
    }
  }
  // Warp.
  static __device__ __forceinline__ Run run_at(const Memory& m, const Args& a, int number, int strips) {
    const int lane = int(threadIdx.x % 32), of_strips = number / strips;
    int count = 0;
    for (int g = 0; g < a.groups; g += 32) {
      count += __popc(__ballot_sync(~0u, g + lane < a.groups && m.run[g + lane] <= of_strips));
    }
    Run r;
    r.group = count - 1;
    r.all = m.run[count] - m.run[r.group];
    const int local = number - strips * m.run[r.group];
    r.strip = local / r.all, r.number = local % r.all;
    const int tiles = (m.row[count] - m.row[r.group] + kRows - 1) / kRows, first = tiles * r.number / r.all;
    r.tiles = tiles * (r.number + 1) / r.all - first;
    r.row = m.row[r.group] + first * kRows;
    r.end = m.row[r.group + 1];
    return r;
  }
  // The block's runs.
  template <class Visit>
  static __device__ __forceinline__ void for_runs(const Memory& m, const Args& a, Visit visit) {
    const int strips = (a.columns + kColumns - 1) / kColumns, all = m.run[a.groups] * strips;
    for (int r = int(blockIdx.x), count = 0; r < all; r += int(gridDim.x), ++count)
      visit(run_at(m, a, r, strips), count);
  }
  // The same, as the warp that copies tiles says when it begins one: finding them takes a while.
  template <class Visit>
  static __device__ __forceinline__ void for_loaded_runs(const Memory& m, const Args& a, const Ring& ring,
                                                         Visit visit) {
    const int all = m.run[a.groups] * ((a.columns + kColumns - 1) / kColumns);
    for (int r = int(blockIdx.x), count = 0; r < all; r += int(gridDim.x), ++count) {
      ptx::mbarrier_wait(address(&m.full[ring.at]), ring.turn);
      visit(m.started[ring.at], count);
    }
  }
  static __device__ __forceinline__ int rows_of(const Run& r, int tile) {
    return min(kRows, r.end - r.row - tile * kRows);
  }

  // ---- words of runs ----

  static __device__ __forceinline__ u64* part_of(const Args& a, const Memory& m, const Run& r, int number) {
    return a.words + (long(r.strip) * a.parts + m.shared[r.group] + number) * kColumns;
  }
  static __device__ __forceinline__ u64* joined_of(const Args& a, const Memory& m, const Run& r) {
    const int strips = (a.columns + kColumns - 1) / kColumns;
    return a.words + (long(strips) * a.parts + long(r.strip) * a.joined + m.wide[r.group]) * kColumns;
  }
  static __device__ __forceinline__ void publish(u64* to, Part part) {
    if (part.sum != part.sum) part.sum = __int_as_float(0x7fc00000);  // not all ones
    ptx::store_word(to, u64(__float_as_uint(part.sum)) << 32 | __float_as_uint(part.most));
  }
  // Whether both are there.
  static __device__ __forceinline__ bool read(const u64* from, Part& first, Part& second) {
    u64 words[2];
    ptx::load_words(from, words[0], words[1]);
    first = {__uint_as_float(unsigned(words[0])), __uint_as_float(unsigned(words[0] >> 32))};
    second = {__uint_as_float(unsigned(words[1])), __uint_as_float(unsigned(words[1] >> 32))};
    return words[0] >> 32 != 0xffffffffu && words[1] >> 32 != 0xffffffffu;
  }
  // What is stored needs of a column.
  static __device__ __forceinline__ Part finished(f32 most, f32 sum) {
    return {shift(most), kLog ? logf(sum) : 1 / sum};
  }

  // ---- warps ----

  static __device__ __forceinline__ void load(Memory& m, const Args& a, const TensorMap& map) {
    Ring ring{0, 1}, oldest;
    int ahead = 0;
    for_runs(m, a, [&](const Run& r, int) {
      for (int i = 0; i < r.tiles; ++i) {
        for (; ahead >= (r.all > kFew ? kAheadShared : kAhead); --ahead) {
          ptx::mbarrier_wait(address(&m.full[oldest.at]), oldest.turn);
          oldest.template next<kSlots>();
        }
        ++ahead;
        ptx::mbarrier_wait(address(&m.empty[ring.at]), ring.turn);
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
          const unsigned full = address(&m.full[ring.at]);
          if (i == 0) m.started[ring.at] = r;
          ptx::mbarrier_arrive_expect(full, kRows * kBytes);
          ptx::tile_load(address(m.tile[ring.at]), &map, full, r.strip * kColumns, r.row + i * kRows);
        }
        ring.template next<kSlots>();
      }
    });
  }

  // Elements of neighbouring columns.
  template <int kCount>
  struct Words {
    static constexpr int kElements = kCount * 4 / int(sizeof(T));
    unsigned words[kCount];
    __device__ __forceinline__ void read(const char* from) {
      if constexpr (kCount == 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(from);
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
      } else if constexpr (kCount == 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(from);
        words[0] = two.x, words[1] = two.y;
      } else {
        words[0] = *reinterpret_cast<const unsigned*>(from);
      }
    }
    __device__ __forceinline__ void store(T* to) const {
      if constexpr (kCount == 4) {
        *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
      } else if constexpr (kCount == 2) {
        *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
      } else {
        *reinterpret_cast<unsigned*>(to) = words[0];
      }
    }
    __device__ __forceinline__ void unpack(f32 (&x)[kElements]) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (sizeof(T) == 4) {
          x[i] = __uint_as_float(words[i]);
        } else if constexpr (is_same<T, bf16>) {
          x[2 * i] = __uint_as_float(words[i] << 16), x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        } else {
          x[2 * i] = ptx::f32_from_f16(u16(words[i])), x[2 * i + 1] = ptx::f32_from_f16(u16(words[i] >> 16));
        }
      }
    }
    // Of each column; where one is NaN, any of the two.
    __device__ __forceinline__ void take_larger(const Words& other) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (sizeof(T) == 4) {
          words[i] = __float_as_uint(fmaxf(__uint_as_float(words[i]), __uint_as_float(other.words[i])));
        } else if constexpr (is_same<T, bf16>) {
          words[i] = ptx::max_nan_bf16x2(words[i], other.words[i]);
        } else {
          words[i] = ptx::max_nan_f16x2(words[i], other.words[i]);
        }
      }
    }
    __device__ __forceinline__ void pack(const f32 (&x)[kElements]) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (sizeof(T) == 4) {
          words[i] = __float_as_uint(x[i]);
        } else if constexpr (is_same<T, bf16>) {
          words[i] = ptx::bf16x2_from_f32(x[2 * i], x[2 * i + 1]);
        } else {
          words[i] = ptx::f16x2_from_f32(x[2 * i], x[2 * i + 1]);
        }
      }
    }
  };
  using Row = Words<kWords>;  // of a lane that folds

  // kHeld rows of a tile join a lane's columns; `rows` of the tile are the group's.
  template <bool kWhole>
  static __device__ __forceinline__ void fold_rows(Line& line, const char* from, int first, int rows) {
    Row held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i].read(from + (first + i * kFolding) * kBytes);
    Line before = line;
    Row most = held[0];
#pragma unroll
    for (int i = 1; i < kHeld; ++i) {
      if (kWhole || first + i * kFolding < rows) most.take_larger(held[i]);
    }
    f32 largest[kOwn];
    most.unpack(largest);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      if (kWhole || first < rows) line.of[c].most = fmaxf(line.of[c].most, largest[c]);
    }
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const Reference of(shift(line.of[c].most));
      line.of[c].sum *= of.between(before.of[c].most);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        f32 x[kOwn];
        held[i].unpack(x);
        if (kWhole || first + i * kFolding < rows) line.of[c].sum += of.power(x[c]);
      }
    }
  }
  static __device__ __forceinline__ Part nothing() { return {-__int_as_float(0x7f800000), 0}; }

  static __device__ __forceinline__ void fold(Memory& m, const Args& a, int warp) {
    const int lane = int(threadIdx.x % 32), column = warp * 32 + lane;
    Ring ring, final{0, 1};
    for_loaded_runs(m, a, ring, [&](const Run r, int count) {
      Line line;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) line.of[c] = nothing();
      for (int t = 0; t < r.tiles; ++t) {
        ptx::mbarrier_wait(address(&m.full[ring.at]), ring.turn);
        const char* from = m.tile[ring.at] + lane * (kWords * 4);
        const int rows = rows_of(r, t);
#pragma unroll 1
        for (int first = warp; first < kRows; first += kHeld * kFolding) {
          if (rows == kRows) {
            fold_rows<true>(line, from, first, rows);
          } else {
            fold_rows<false>(line, from, first, rows);
          }
        }
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(address(&m.empty[ring.at]));
        ring.template next<kSlots>();
      }
      Part(&parts)[kFolding][kColumns] = m.part[count % 2];
      *reinterpret_cast<Line*>(&parts[warp][lane * kOwn]) = line;
      ptx::meet<32 * kFolding>(1);
      if (warp < kColumnWarps) {
        Part all = nothing();
#pragma unroll
        for (int i = 0; i < kFolding; ++i) all.most = fmaxf(all.most, parts[i][column].most);
        const Reference of(shift(all.most));
#pragma unroll
        for (int i = 0; i < kFolding; ++i) all.sum += parts[i][column].sum * of.between(parts[i][column].most);
        if (r.all > 1) {
          publish(part_of(a, m, r, r.number) + column, all);
        } else {
          ptx::mbarrier_wait(address(&m.used[final.at]), final.turn);
          m.final[final.at][column] = finished(all.most, all.sum);
          __syncwarp();
          if (lane == 0) ptx::mbarrier_arrive(address(&m.made[final.at]));
        }
      }
      final.template next<kFinals>();
    });
  }

  // A lane's columns of at most kFew runs.
  static __device__ __forceinline__ void join_few(Line& line, const u64* from, int all) {
    const int lane = int(threadIdx.x % 32);
    Line parts[kFew];
    bool there;
    do {
      there = true;
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        if (i >= all) continue;
#pragma unroll
        for (int c = 0; c < kOwn; c += 2) {
          there &= read(from + i * kColumns + lane * kOwn + c, parts[i].of[c], parts[i].of[c + 1]);
        }
      }
    } while (__ballot_sync(~0u, !there) != 0);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      Part joined = nothing();
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        if (i < all) joined.most = fmaxf(joined.most, parts[i].of[c].most);
      }
      const Reference of(shift(joined.most));
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        if (i < all) joined.sum += parts[i].of[c].sum * of.between(parts[i].of[c].most);
      }
      line.of[c] = finished(joined.most, joined.sum);
    }
  }
  static __device__ __forceinline__ f32 of_lane(f32 x, int distance) {
    return __uint_as_float(__shfl_xor_sync(~0u, __float_as_uint(x), distance));
  }
  // Four columns of all runs: a pair of lanes has two of them each, sixteen pairs every sixteenth run.
  static __device__ __forceinline__ void join_columns(u64* to, const u64* from, int all) {
    const int lane = int(threadIdx.x % 32);
    Part joined[2] = {nothing(), nothing()};
    for (int begin = 0; begin < all; begin += 16 * kAtOnce) {
      Part parts[kAtOnce][2];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int part = begin + i * 16 + lane / 2;
          parts[i][0] = parts[i][1] = nothing();
          if (part < all) there &= read(from + long(part) * kColumns + lane % 2 * 2, parts[i][0], parts[i][1]);
        }
      } while (__ballot_sync(~0u, !there) != 0);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const f32 before = joined[c].most;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) joined[c].most = fmaxf(joined[c].most, parts[i][c].most);
        const Reference of(shift(joined[c].most));
        joined[c].sum *= of.between(before);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) joined[c].sum += parts[i][c].sum * of.between(parts[i][c].most);
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      f32 most = joined[c].most;
#pragma unroll
      for (int by = 2; by < 32; by *= 2) most = fmaxf(most, of_lane(most, by));
      const Reference of(shift(most));
      f32 sum = joined[c].sum * of.between(joined[c].most);
#pragma unroll
      for (int by = 2; by < 32; by *= 2) sum += of_lane(sum, by);
      if (lane < 2) publish(to + lane * 2 + c, finished(most, sum));
    }
  }
  static __device__ __forceinline__ void join(Memory& m, const Args& a, int warp) {
    const int lane = int(threadIdx.x % 32);
    Ring final{0, 1};
    for_runs(m, a, [&](const Run& r, int count) {
      if (r.all > 1 && count % kJoining == warp) {
        const u64* const from = part_of(a, m, r, 0);
        Line line;
        if (r.all <= kFew) {
          join_few(line, from, r.all);
        } else {
          u64* const joined = joined_of(a, m, r);
          // Other runs for each strip: those who join columns are behind the others then.
          const int first = (r.number + r.strip * (kColumns / 4)) % r.all * 4;
          for (int c = first; c < kColumns; c += r.all * 4) join_columns(joined + c, from + c, r.all);
          bool there;
          do {
            there = true;
#pragma unroll
            for (int c = 0; c < kOwn; c += 2) there &= read(joined + lane * kOwn + c, line.of[c], line.of[c + 1]);
          } while (__ballot_sync(~0u, !there) != 0);
        }
        ptx::mbarrier_wait(address(&m.used[final.at]), final.turn);
        *reinterpret_cast<Line*>(&m.final[final.at][lane * kOwn]) = line;
        __syncwarp();
        if (lane < kColumnWarps) ptx::mbarrier_arrive(address(&m.made[final.at]));
      }
      final.template next<kFinals>();
    });
  }

  static __device__ __forceinline__ void store(Memory& m, const Args& a, int warp) {
    using Chunk = Words<kChunk>;
    constexpr int kStep = kStoring * kAtATime;
    const int lane = int(threadIdx.x % 32), own = lane % kLanes * Chunk::kElements;
    const int first = warp * kAtATime + lane / kLanes;
    const long step = long(kStep) * a.columns;
    Ring ring, final;
    for_loaded_runs(m, a, ring, [&](const Run r, int) {
      ptx::mbarrier_wait(address(&m.made[final.at]), final.turn);
      Part columns[Chunk::kElements];
#pragma unroll
      for (int c = 0; c < Chunk::kElements; ++c) columns[c] = m.final[final.at][own + c];
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(address(&m.used[final.at]));
      final.template next<kFinals>();
      const int column = r.strip * kColumns + own;
      for (int t = 0; t < r.tiles; ++t) {
        ptx::mbarrier_wait(address(&m.full[ring.at]), ring.turn);
        const char* const from = m.tile[ring.at] + first * kBytes + lane % kLanes * (4 * kChunk);
        T* to = a.out + (long(r.row) + t * kRows + first) * a.columns + column;
        const int rows = column < a.columns ? rows_of(r, t) : 0;
#pragma unroll
        for (int i = 0; i < kRows / kStep; ++i, to += step) {
          Chunk chunk;
          f32 x[Chunk::kElements];
          chunk.read(from + i * (kStep * kBytes));
          chunk.unpack(x);
#pragma unroll
          for (int c = 0; c < Chunk::kElements; ++c) {
            if constexpr (kLog) {
              x[c] = x[c] - columns[c].most - columns[c].sum;
            } else {
              x[c] = Reference(columns[c].most).power(x[c]) * columns[c].sum;
            }
          }
          chunk.pack(x);
          if (i * kStep + first < rows) chunk.store(to);
        }
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(address(&m.empty[ring.at]));
        ring.template next<kSlots>();
      }
    });
    const int vectors = a.columns * int(sizeof(T)) / 16;
    for (long row = m.row[a.groups] + int(blockIdx.x); row < a.rows; row += gridDim.x) {
      uint4* const to = reinterpret_cast<uint4*>(a.out + row * a.columns);
      for (int i = warp * 32 + lane; i < vectors; i += 32 * kStoring) to[i] = uint4{0, 0, 0, 0};
    }
  }

  static __device__ __forceinline__ void run(char* memory, const Args& a, const TensorMap& map) {
    Memory& m = *reinterpret_cast<Memory*>(memory);
    const int warp = int(threadIdx.x / 32);
    if (warp == 0) {
      make_table(m, a);
      if (threadIdx.x == 0) {
        for (int i = 0; i < kSlots; ++i) {
          ptx::mbarrier_init(address(&m.full[i]), 1);
          ptx::mbarrier_init(address(&m.empty[i]), kFolding + kStoring);
        }
        for (int i = 0; i < kFinals; ++i) {
          ptx::mbarrier_init(address(&m.made[i]), kColumnWarps);
          ptx::mbarrier_init(address(&m.used[i]), kStoring);
        }
        ptx::mbarrier_init_fence();
      }
    }
    __syncthreads();
    if (warp == 0) {
      load(m, a, map);
    } else if (warp <= kFolding) {
      fold(m, a, warp - 1);
    } else if (warp <= kFolding + kJoining) {
      join(m, a, warp - 1 - kFolding);
    } else {
      store(m, a, warp - 1 - kFolding - kJoining);
    }
  }
};

}  // namespace jf
