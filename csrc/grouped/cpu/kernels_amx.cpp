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
  // Level-2 caches have 2 MiB where there are tiles: more rows, for which rhs is packed once.
  static constexpr int64_t kMostSumBytes = 1 << 20;

  // The tile registers of this thread, in use.
  struct Session {
    Session() {
      // Static: GCC 12 believes that the load reads 8 bytes and drops the rest of a local.
      static constexpr TileConfig kConfig;
      _tile_loadconfig(&kConfig);
    }
    ~Session() { _tile_release(); }
  };

  static FloatBits widen(const void* from) { return Machine::widen(from); }
  static auto join(Floats left, Floats right) { return (FloatBits)_mm512_cvtne2ps_pbh((__m512)right, (__m512)left); }
  static void pack_lhs(const PackArguments& x);
  static void run_tile(int64_t rows, int64_t steps, const Word* a, const Word* b, const Sum* start, Sum* out,
                       Ahead& ahead);
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

void TileOp::run_tile(int64_t rows, int64_t steps, const Word* a, const Word* b, const Sum* start, Sum* out,
                      Ahead& ahead) {
  constexpr int64_t kRhsLine = kTileColumns<TileOp>;  // words, and sums, of a line of 32 columns
  constexpr int64_t kRhsBytes = kRhsLine * sizeof(Word);
  constexpr int64_t kLhsBytes = kLineWords * sizeof(Word);
  constexpr int64_t kLower = kTileLines * kRhsLine;  // sums of the upper 16 rows
  const bool both = rows > kTileLines;
  if (start) {
    _tile_loadd(0, start, kRhsBytes);
    _tile_loadd(1, start + kLineWords, kRhsBytes);
    if (both) {
      _tile_loadd(2, start + kLower, kRhsBytes);
      _tile_loadd(3, start + kLower + kLineWords, kRhsBytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  if (both) {
    for (int64_t k = 0; k < steps; k += kLineWords, a += 2 * kTileLines * kLineWords, b += kLineWords * kRhsLine) {
      _tile_loadd(4, a, kLhsBytes);
      _tile_loadd(6, b, kRhsBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kLineWords, kRhsBytes);
      ahead.advance();
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTileLines * kLineWords, kLhsBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, out + kLower, kRhsBytes);
    _tile_stored(3, out + kLower + kLineWords, kRhsBytes);
  } else {
    for (int64_t k = 0; k < steps; k += kLineWords, a += kTileLines * kLineWords, b += kLineWords * kRhsLine) {
      _tile_loadd(4, a, kLhsBytes);
      _tile_loadd(6, b, kRhsBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kLineWords, kRhsBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
  }
  _tile_stored(0, out, kRhsBytes);
  _tile_stored(1, out + kLineWords, kRhsBytes);
}

}  // namespace

const Kernel* amx_kernel(DType in, DType out) { return in == DType::kBF16 ? kernel_into<TileOp, Brain>(out) : nullptr; }

}  // namespace jf::grouped::cpu
