// Multiplies packed blocks in register tiles of Op::kTileRows rows by two registers of columns. Each kernels_<isa>.cpp
// includes this after its Machine (vectors.h).
//
// An Op gives Word (packed), Sum, kElements per word, kDepthGranule, kRowGranule, kTileRows, widen(line) of 16-bit
// elements where a word has two, and either step(sum, a, b), one multiply-add of a register, or its own multiply. A
// step reads a word per row, two registers of rhs.
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
  static Register<T> step(Register<T> sum, T a, Register<T> b) { return sum + a * b; }
};

template <class Op>
constexpr int kTileColumns = 2 * kLanes<typename Op::Sum>;
template <class Op>
constexpr int kElementBytes = sizeof(typename Op::Word) / Op::kElements;  // packed

// Prefetches what comes next into level 2, a few lines every kPace steps: memory works while the tiles multiply.
class Ahead {
 public:
  static constexpr int64_t kPace = 4;

  // `paces` times kPace steps lie ahead.
  Ahead(const NextSource& next, int64_t paces)
      : at_(static_cast<const char*>(next.begin)),
        line_lines_(divide_up(next.line_bytes, kLine)),
        jump_(next.stride_bytes - line_lines_ * kLine),
        in_line_(line_lines_),
        left_(next.lines * line_lines_),
        share_(least(divide_up(left_, paces), kMost)) {}

  void advance() {
    for (int64_t i = least(share_, left_); i > 0; --i, --left_) {
      __builtin_prefetch(at_, 0, 2);
      at_ += kLine;
      if (--in_line_ == 0) {
        at_ += jump_;
        in_line_ = line_lines_;
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kMost = 6;  // more at once would wait for each other

  const char* at_;
  int64_t line_lines_;
  int64_t jump_;
  int64_t in_line_;
  int64_t left_;
  int64_t share_;
};

// Stores a row of sums as Out, of as many columns as a tile has.
template <class Op, class Out>
inline void write_row(Out* out, Register<typename Op::Sum> left, Register<typename Op::Sum> right, bool stream) {
  constexpr int kCount = kLanes<typename Op::Sum>;
  const auto put = [stream](void* to, auto value) { stream ? Machine::stream(to, value) : store(to, value); };
  if constexpr (std::is_same_v<Out, Brain> && requires { Op::join(left, right); }) {
    put(out, Op::join(left, right));
  } else {
    put(out, Format<Out, typename Op::Sum>::convert(left));
    put(out + kCount, Format<Out, typename Op::Sum>::convert(right));
  }
}

// One tile of kRows rows: starts from `start` (a stored tile; null: zeros), runs `steps` words deep, writes to `out`.
template <class Op, class Out, int kRows>
void register_tile(int64_t steps, const typename Op::Word* a, const typename Op::Word* b, const typename Op::Sum* start,
                   Out* out, int64_t out_stride, bool stream, Ahead& ahead) {
  using Sum = Register<typename Op::Sum>;
  using Words = Register<typename Op::Word>;
  constexpr int kCount = kLanes<typename Op::Sum>;
  Sum sums[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    sums[i][0] = start ? load<Sum>(start + i * 2 * kCount) : Sum{};
    sums[i][1] = start ? load<Sum>(start + i * 2 * kCount + kCount) : Sum{};
  }
  for (int64_t pace = 0; pace < steps; pace += Ahead::kPace) {
    ahead.advance();
    const int64_t end = least(pace + Ahead::kPace, steps);
    for (int64_t k = pace; k < end; ++k, a += kRows, b += 2 * kCount) {
      const Words b0 = load<Words>(b);
      const Words b1 = load<Words>(b + kCount);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        sums[i][0] = Op::step(sums[i][0], a[i], b0);
        sums[i][1] = Op::step(sums[i][1], a[i], b1);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i, out += out_stride) write_row<Op>(out, sums[i][0], sums[i][1], stream);
}

template <class Op, class Out>
using Tile = void (*)(int64_t, const typename Op::Word*, const typename Op::Word*, const typename Op::Sum*, Out*,
                      int64_t, bool, Ahead&);

template <class Op, class Out, int... kRow>
inline Tile<Op, Out> tile_of_rows(int64_t rows, std::integer_sequence<int, kRow...>) {
  static constexpr Tile<Op, Out> kTiles[] = {register_tile<Op, Out, kRow + 1>...};
  return kTiles[rows - 1];
}

// As write_row, of `columns` columns if that is less.
template <class Op, class Out>
inline void write_columns(Out* out, Register<typename Op::Sum> left, Register<typename Op::Sum> right, int64_t columns,
                          bool stream) {
  if (columns < kTileColumns<Op>) {
    Out row[kTileColumns<Op>];
    write_row<Op>(row, left, right, false);
    std::memcpy(out, row, columns * sizeof(Out));
  } else {
    write_row<Op>(out, left, right, stream);
  }
}

// Writes a stored tile, or a part of one, as rows of the result.
template <class Op, class Out>
void write_tile(const typename Op::Sum* tile, Out* out, int64_t out_stride, int64_t rows, int64_t columns,
                bool stream) {
  using Sum = Register<typename Op::Sum>;
  constexpr int kCount = kLanes<typename Op::Sum>;
  for (int64_t i = 0; i < rows; ++i, out += out_stride, tile += 2 * kCount) {
    write_columns<Op>(out, load<Sum>(tile), load<Sum>(tile + kCount), columns, stream);
  }
}

template <class Op, class Out>
void multiply(const MultiplyArguments& x) {
  using Word = typename Op::Word;
  using Sum = typename Op::Sum;
  constexpr int64_t kRows = Op::kTileRows;
  constexpr int64_t kColumns = kTileColumns<Op>;
  Sum* tile = static_cast<Sum*>(x.accumulators);
  const bool keep = !(x.first && x.last);
  const int64_t steps = x.depth / Op::kElements;
  const int64_t row_tiles = divide_up(x.rows, kRows);
  const int64_t column_tiles = divide_up(x.columns, kColumns);
  Ahead ahead(x.next, row_tiles * column_tiles * divide_up(steps, Ahead::kPace));
  for (int64_t column = 0; column < x.columns; column += kColumns) {
    const Word* b = static_cast<const Word*>(x.rhs) + column * steps;
    const int64_t columns = least(kColumns, x.columns - column);
    for (int64_t row = 0; row < x.rows; row += kRows) {
      const int64_t rows = least(kRows, x.rows - row);
      const int64_t height = round_up(rows, Op::kRowGranule);
      const Word* a = static_cast<const Word*>(x.lhs) + (row * x.lhs_depth + x.depth_begin * height) / Op::kElements;
      const Sum* start = x.first ? nullptr : tile;
      Out* out = static_cast<Out*>(x.out) + row * x.out_stride + column;
      constexpr auto kSizes = std::make_integer_sequence<int, Op::kTileRows>();
      if (x.last && columns == kColumns) {
        tile_of_rows<Op, Out>(rows, kSizes)(steps, a, b, start, out, x.out_stride, x.stream, ahead);
      } else {
        tile_of_rows<Op, Sum>(rows, kSizes)(steps, a, b, start, tile, kColumns, false, ahead);
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

}  // namespace
}  // namespace jf::grouped::cpu
