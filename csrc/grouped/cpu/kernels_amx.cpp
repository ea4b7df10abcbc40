// AMX: bf16 inputs, tiles of 32 x 32 f32 in four tile registers, two each for lhs and rhs.
//
// lhs panels are [depth / 32][rows][32] bf16, one 64-byte line per row, rows padded to 16 and depth to 32 with zeros;
// rhs panels are the pairs of AVX-512 BF16. Needs the kernel's permission for tile data, which host_isa() asks for.
#include "grouped/cpu/machine_avx512.h"

// After Machine:
#include "grouped/cpu/kernel_of.h"

namespace jf::grouped::cpu {
namespace {

constexpr int kTileLines = 16;  // rows of a tile register
constexpr int kLineWords = 16;  // dwords of a row: 64 bytes
constexpr int kLineElements = 32;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t line_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t lines[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

struct TileOp {
  using Word = uint32_t;
  using Sum = float;
  static constexpr int kElements = 2;
  static constexpr int kDepthGranule = kLineElements;
  static constexpr int kRowGranule = kTileLines;
  static constexpr int kTileRows = 2 * kTileLines;
  // Level-2 caches have 2 MiB where there are tiles.
  static constexpr int64_t kRhsBytes = 512 << 10;
  static constexpr int64_t kMostSumBytes = 2 << 20;

  static FloatBits widen(const void* from) { return Machine::widen(from); }
  static auto join(Floats left, Floats right) { return (FloatBits)_mm512_cvtne2ps_pbh((__m512)right, (__m512)left); }
  // Two lines of 32 elements as pairs.
  static void interleave(const void* line, const void* next, Word* to) {
    typedef uint16_t Elements __attribute__((vector_size(64)));
    const Elements a = load<Elements>(line), b = load<Elements>(next);
    store(to, __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10,
                                      42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47));
    store(to + kLineWords, __builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                                   24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63));
  }
  static void pack_lhs(const PackArguments& x);
  template <class Out>
  static void multiply(const MultiplyArguments& x);
};

// The tile registers of this thread, in use.
struct Session {
  Session() {
    // Static: GCC 12 believes that the load reads 8 bytes and drops the rest of a local.
    static constexpr TileConfig kConfig;
    _tile_loadconfig(&kConfig);
  }
  ~Session() { _tile_release(); }
};

// One tile register of lhs: up to 16 rows by 32 of depth, from the source at (row, k).
void pack_tile(const PackArguments& x, int64_t row, int64_t k, uint32_t* to) {
  const Brain* source = static_cast<const Brain*>(x.source);
  const int64_t rows = x.width - row;
  if (x.depth_contiguous) {
    for (int64_t i = 0; i < kTileLines; ++i) {
      FloatBits line{};
      if (i < rows) line = load_along<TileOp>(source + (row + i) * x.stride + k, x.depth_end - k);
      store(to + i * kLineWords, line);
    }
    return;
  }
  FloatBits square[kLineWords];
  for (int64_t i = 0; i < kLineWords; ++i) {
    const int64_t depth = k + 2 * i;
    const Brain* line = source + depth * x.stride + row;
    square[i] = FloatBits{};
    if (depth < x.depth_end) {
      square[i] = load_across<TileOp>(line, depth + 1 < x.depth_end ? line + x.stride : nullptr, rows);
    }
  }
  transpose<uint32_t>(square);
  for (int64_t i = 0; i < kLineWords; ++i) store(to + i * kLineWords, square[i]);
}

void TileOp::pack_lhs(const PackArguments& x) {
  for (int64_t k = x.depth_begin; k < x.depth_end; k += kDepthGranule) {
    for (int64_t begin = 0; begin < x.width; begin += kTileRows) {
      const int64_t height = round_up(least(kTileRows, x.width - begin), kRowGranule);
      uint32_t* panel = static_cast<uint32_t*>(x.packed) + (begin * x.packed_depth + k * height) / kElements;
      for (int64_t i = 0; i < height; i += kTileLines) pack_tile(x, begin + i, k, panel + i * kLineWords);
    }
  }
}

constexpr int64_t kTileSums = TileOp::kTileRows * kTileColumns<TileOp>;

// Adds `steps` lines of lhs times rhs to the tile at `start` (null: zeros), to `out`. rhs passes level 1 by: what a
// panel of lhs meets next is another part of it.
template <class Meanwhile>
inline void run_tile(int64_t rows, int64_t steps, const uint32_t* a, const uint32_t* b, const float* start, float* out,
                     Meanwhile meanwhile) {
  constexpr int64_t kRhsLine = kTileColumns<TileOp>;  // words, and sums, of a line of 32 columns
  constexpr int64_t kRhsStride = kRhsLine * sizeof(uint32_t);
  constexpr int64_t kLhsStride = kLineWords * sizeof(uint32_t);
  constexpr int64_t kLower = kTileLines * kRhsLine;  // sums of the upper 16 rows
  const bool both = rows > kTileLines;
  if (start) {
    _tile_loadd(0, start, kRhsStride);
    _tile_loadd(1, start + kLineWords, kRhsStride);
    if (both) {
      _tile_loadd(2, start + kLower, kRhsStride);
      _tile_loadd(3, start + kLower + kLineWords, kRhsStride);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  if (both) {
    for (int64_t k = 0; k < steps; ++k, a += 2 * kTileLines * kLineWords, b += kLineWords * kRhsLine) {
      _tile_loadd(4, a, kLhsStride);
      _tile_stream_loadd(6, b, kRhsStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stream_loadd(7, b + kLineWords, kRhsStride);
      meanwhile();
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTileLines * kLineWords, kLhsStride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, out + kLower, kRhsStride);
    _tile_stored(3, out + kLower + kLineWords, kRhsStride);
  } else {
    for (int64_t k = 0; k < steps; ++k, a += kTileLines * kLineWords, b += kLineWords * kRhsLine) {
      _tile_loadd(4, a, kLhsStride);
      _tile_stream_loadd(6, b, kRhsStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stream_loadd(7, b + kLineWords, kRhsStride);
      meanwhile();
      _tile_dpbf16ps(1, 4, 7);
    }
  }
  _tile_stored(0, out, kRhsStride);
  _tile_stored(1, out + kLineWords, kRhsStride);
}

// Writes a finished tile as rows of the result, a few at a time: the vector units work while the tiles multiply.
template <class Out>
struct Finished {
  const float* tile = nullptr;
  Out* out = nullptr;
  int64_t out_stride = 0;
  int64_t columns = 0;
  bool stream = false;
  int64_t left = 0;  // rows

  void advance(int64_t rows) {
    for (; rows > 0 && left > 0; --rows, --left, tile += kTileColumns<TileOp>, out += out_stride) {
      write_columns<TileOp>(out, load<Floats>(tile), load<Floats>(tile + kLineWords), columns, stream);
    }
  }
};

// Rows by rows. Of a panel of lhs a part that stays in level 1 meets all columns of rhs, which stays in level 2, while
// the panel of the next rows is on its way from further out. Level 2 is what bounds this: 32 + 4096 / (depth of a part)
// bytes a cycle at the rate of the tiles.
template <class Out>
void TileOp::multiply(const MultiplyArguments& x) {
  constexpr int64_t kRows = kTileRows, kColumns = kTileColumns<TileOp>;
  constexpr int64_t kMostPart = 16;  // of 1 KiB and 32 rows: 32 of 48 KiB
  const Session session;
  const int64_t steps = x.depth / kDepthGranule, column_tiles = divide_up(x.columns, kColumns);
  const int64_t part = divide_up(steps, divide_up(steps, kMostPart));
  const bool keep = !(x.first && x.last);
  const auto height = [&x](int64_t row) { return round_up(least(kRows, x.rows - row), kRowGranule); };
  const auto panel = [&x, &height](int64_t row) {
    return static_cast<const Word*>(x.lhs) + (row * x.lhs_depth + x.depth_begin * height(row)) / kElements;
  };
  alignas(64) Sum results[2][kTileSums];
  int turn = 0;
  Finished<Out> finished;
  Sum* sums = static_cast<Sum*>(x.accumulators);
  for (int64_t row = 0; row < x.rows; row += kRows) {
    const int64_t rows = least(kRows, x.rows - row), next = row + kRows;
    const int64_t next_bytes = next < x.rows ? height(next) * x.depth * kElementBytes<TileOp> : 0;
    const int64_t sums_bytes = x.first || next >= x.rows ? 0 : column_tiles * kTileSums * sizeof(Sum);
    Ahead sums_ahead({sums + column_tiles * kTileSums, 1, sums_bytes, 0}, column_tiles * steps);
    Ahead rows_ahead({panel(next < x.rows ? next : row), 1, next_bytes, 0}, column_tiles * steps);
    for (int64_t k = 0; k < steps; k += part) {
      const int64_t these = least(part, steps - k), rows_a_step = divide_up(kRows, these);
      const bool last = x.last && k + these == steps;
      const Word* a = panel(row) + k * kLineWords * height(row);
      for (int64_t tile = 0; tile < column_tiles; ++tile) {
        Sum* at = sums + tile * kTileSums;
        Sum* to = last ? results[turn] : at;
        const Word* b = static_cast<const Word*>(x.rhs) + (tile * steps + k) * kLineWords * kColumns;
        run_tile(rows, these, a, b, x.first && k == 0 ? nullptr : at, to, [&] {
          finished.advance(rows_a_step);
          rows_ahead.advance();
          sums_ahead.advance();
        });
        if (!last) continue;
        finished.advance(kRows);
        Out* out = static_cast<Out*>(x.out) + row * x.out_stride + tile * kColumns;
        finished = {to, out, x.out_stride, least(kColumns, x.columns - tile * kColumns), x.stream, rows};
        turn = 1 - turn;
      }
    }
    if (keep) sums += column_tiles * kTileSums;
  }
  finished.advance(kRows);
  if (x.stream) Machine::fence();
}

}  // namespace

const Kernel* amx_kernel(DType in, DType out) { return in == DType::kBF16 ? kernel_into<TileOp, Brain>(out) : nullptr; }

}  // namespace jf::grouped::cpu
