// Multiplies packed blocks in register tiles of Op::kTileRows rows by two registers of columns. Each kernels_<isa>.cpp
// includes this after its Machine (vectors.h).
//
// An Op gives Word (packed), Sum, kElements per word, kDepthGranule, kRowGranule, kTileRows, and either
// step(sum, a, b), one multiply-add of a register, or its own run_tile. A step reads a word per row, two registers of
// rhs.
#pragma once

#include "grouped/cpu/kernels.h"
#include "grouped/cpu/pack.h"

namespace jf::grouped::cpu {
namespace {

// Multiply-add in T. Registers: the sums, two of rhs and one of lhs: 31 of 32 with 14 rows (AVX-512), 15 of 16 with 6.
template <class T>
struct FmaOp {
  using Word = T;
  using Sum = T;
  static constexpr int kElements = 1;
  static constexpr int kDepthGranule = 1;
  static constexpr int kRowGranule = 1;
  static constexpr int kTileRows = Machine::kTileRows;
  static constexpr bool kAnyOut = true;  // a tile writes rows of any stride
  struct Session {};
  static Register<T> step(Register<T> sum, T a, Register<T> b) { return sum + a * b; }
};

template <class Op>
constexpr int kTileColumns = 2 * kLanes<typename Op::Sum>;

// One tile of kRows rows: starts from `start` (a stored tile; null: zeros), runs `steps` words deep, writes to `out`.
template <class Op, int kRows>
void register_tile(int64_t steps, const typename Op::Word* a, const typename Op::Word* b, const typename Op::Sum* start,
                   typename Op::Sum* out, int64_t out_stride, bool stream) {
  using Sum = Register<typename Op::Sum>;
  using Words = Register<typename Op::Word>;
  constexpr int kCount = kLanes<typename Op::Sum>;
  Sum sums[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    sums[i][0] = start ? load<Sum>(start + i * 2 * kCount) : Sum{};
    sums[i][1] = start ? load<Sum>(start + i * 2 * kCount + kCount) : Sum{};
  }
  for (int64_t k = 0; k < steps; ++k, a += kRows, b += 2 * kCount) {
    const Words b0 = load<Words>(b);
    const Words b1 = load<Words>(b + kCount);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      sums[i][0] = Op::step(sums[i][0], a[i], b0);
      sums[i][1] = Op::step(sums[i][1], a[i], b1);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i, out += out_stride) {
    if (stream) {
      Machine::stream(out, sums[i][0]);
      Machine::stream(out + kCount, sums[i][1]);
    } else {
      store(out, sums[i][0]);
      store(out + kCount, sums[i][1]);
    }
  }
}

template <class Op>
using Tile = void (*)(int64_t, const typename Op::Word*, const typename Op::Word*, const typename Op::Sum*,
                      typename Op::Sum*, int64_t, bool);

template <class Op, int... kRow>
inline Tile<Op> tile_of_rows(int64_t rows, std::integer_sequence<int, kRow...>) {
  static constexpr Tile<Op> kTiles[] = {register_tile<Op, kRow + 1>...};
  return kTiles[rows - 1];
}

template <class Op>
inline void run_tile(int64_t rows, int64_t steps, const typename Op::Word* a, const typename Op::Word* b,
                     const typename Op::Sum* start, typename Op::Sum* out, int64_t out_stride, bool stream) {
  if constexpr (requires { Op::run_tile; }) {
    Op::run_tile(rows, steps, a, b, start, out);
  } else {
    const Tile<Op> tile = tile_of_rows<Op>(rows, std::make_integer_sequence<int, Op::kTileRows>());
    tile(steps, a, b, start, out, out_stride, stream);
  }
}

// Converts a stored tile to rows of the result.
template <class Op, class Out>
void write_tile(const typename Op::Sum* tile, Out* out, int64_t out_stride, int64_t rows, int64_t columns,
                bool stream) {
  using Sum = typename Op::Sum;
  constexpr int kCount = kLanes<Sum>;
  for (int64_t i = 0; i < rows; ++i, out += out_stride, tile += 2 * kCount) {
    const auto left = Format<Out, Sum>::convert(load<Register<Sum>>(tile));
    const auto right = Format<Out, Sum>::convert(load<Register<Sum>>(tile + kCount));
    static_assert(sizeof(left) == sizeof(Out) * kCount);
    if (columns < 2 * kCount) {
      Out row[2 * kCount];
      store(row, left);
      store(row + kCount, right);
      std::memcpy(out, row, columns * sizeof(Out));
    } else if (stream) {
      Machine::stream(out, left);
      Machine::stream(out + kCount, right);
    } else {
      store(out, left);
      store(out + kCount, right);
    }
  }
}

template <class Op, class Out>
void multiply(const MultiplyArguments& x) {
  using Word = typename Op::Word;
  using Sum = typename Op::Sum;
  constexpr int64_t kRows = Op::kTileRows;
  constexpr int64_t kColumns = kTileColumns<Op>;
  [[maybe_unused]] const typename Op::Session session;
  Sum* tile = static_cast<Sum*>(x.accumulators);
  const bool keep = !(x.first && x.last);
  for (int64_t column = 0; column < x.columns; column += kColumns) {
    const Word* b = static_cast<const Word*>(x.rhs) + column * x.depth / Op::kElements;
    const int64_t columns = least(kColumns, x.columns - column);
    for (int64_t row = 0; row < x.rows; row += kRows) {
      const int64_t rows = least(kRows, x.rows - row);
      const int64_t height = round_up(rows, Op::kRowGranule);
      const Word* a = static_cast<const Word*>(x.lhs) + (row * x.lhs_depth + x.depth_begin * height) / Op::kElements;
      const Sum* start = x.first ? nullptr : tile;
      Out* out = static_cast<Out*>(x.out) + row * x.out_stride + column;
      const int64_t steps = x.depth / Op::kElements;
      bool direct = false;
      if constexpr (Op::kAnyOut && std::is_same_v<Out, Sum>) {
        direct = x.last && columns == kColumns;
        if (direct) run_tile<Op>(rows, steps, a, b, start, out, x.out_stride, x.stream);
      }
      if (!direct) {
        run_tile<Op>(rows, steps, a, b, start, tile, kColumns, false);
        if (x.last) write_tile<Op>(tile, out, x.out_stride, rows, columns, x.stream);
      }
      if (keep) tile += kRows * kColumns;
    }
  }
  if (x.stream) Machine::fence();
}

inline void fill_zero(void* out, int64_t bytes, bool stream) {
  char* to = static_cast<char*>(out);
  char* end = to + bytes;
  if (stream) {
    for (; end - to >= Machine::kVectorBytes; to += Machine::kVectorBytes) Machine::stream(to, Register<float>{});
    Machine::fence();
  }
  std::memset(to, 0, end - to);
}

template <class Op, class In, class Out>
constexpr Kernel make_kernel() {
  Kernel kernel;
  kernel.tile_rows = Op::kTileRows;
  kernel.tile_columns = kTileColumns<Op>;
  kernel.row_granule = Op::kRowGranule;
  kernel.depth_granule = Op::kDepthGranule;
  kernel.packed_bytes = sizeof(typename Op::Word) / Op::kElements;
  kernel.accumulator_bytes = sizeof(typename Op::Sum);
  if constexpr (requires { &Op::pack_lhs; }) {
    kernel.pack_lhs = Op::pack_lhs;
  } else {
    kernel.pack_lhs = pack<Op, In, Op::kTileRows, Op::kRowGranule>;
  }
  kernel.pack_rhs = pack<Op, In, kTileColumns<Op>, kTileColumns<Op>>;
  kernel.multiply = multiply<Op, Out>;
  kernel.fill_zero = fill_zero;
  return kernel;
}

template <class Op, class In, class Out>
constexpr Kernel kKernel = make_kernel<Op, In, Out>();

// The kernel of Op for these dtypes of up to 32 bits.
template <class Op, class In>
const Kernel* kernel_into(DType out) {
  switch (out) {
    case DType::kF32: return &kKernel<Op, In, float>;
    case DType::kF16: return &kKernel<Op, In, Half>;
    case DType::kBF16: return &kKernel<Op, In, Brain>;
    default: return nullptr;
  }
}

// Multiply-add in f32 for floats of up to 32 bits, in f64 for f64.
inline const Kernel* fma_kernel(DType in, DType out) {
  switch (in) {
    case DType::kF32: return kernel_into<FmaOp<float>, float>(out);
    case DType::kF16: return kernel_into<FmaOp<float>, Half>(out);
    case DType::kBF16: return kernel_into<FmaOp<float>, Brain>(out);
    case DType::kF64: return out == DType::kF64 ? &kKernel<FmaOp<double>, double, double> : nullptr;
    default: return nullptr;
  }
}

}  // namespace
}  // namespace jf::grouped::cpu
