// Multiplies few rows of packed lhs by rhs as it lies in memory. Reading rhs is the work then: it is read once, in
// long pieces of its lines, and never stored again.
#pragma once

#include "grouped/cpu/multiply.h"

namespace jf::grouped::cpu {
namespace {

// More would compute for longer than memory takes.
template <class Op>
constexpr int kMostFewRows = Op::kTileRows < 8 ? Op::kTileRows : 8;

// Short registers run out of instructions before they run out of memory; integers are widened first.
template <class Op>
constexpr bool can_few_rows =
    std::is_floating_point_v<typename Op::Sum> && Machine::kVectorBytes >= 32 && requires { &Op::step; };

// Sums of kRows rows by x.columns, in memory: too many for registers, but they stay in the first-level cache.
template <class Op, class In, int kRows>
void few_rows(const FewRowsArguments& x) {
  using Word = typename Op::Word;
  using Sum = Register<typename Op::Sum>;
  using Words = Register<Word>;
  constexpr int kCount = kLanes<typename Op::Sum>;
  constexpr int kTogether = 4;  // words along the depth for each access to a sum
  constexpr int kAhead = 2 * kTogether * Op::kElements;
  const In* source = static_cast<const In*>(x.rhs);
  const Word* a = static_cast<const Word*>(x.lhs);
  auto* sums = static_cast<typename Op::Sum*>(x.accumulators);
  const int64_t width = round_up(x.columns, 2 * kCount);
  std::memset(static_cast<void*>(sums), 0, kRows * width * sizeof(*sums));

  const auto add = [&]<int kWords>(std::integral_constant<int, kWords>, int64_t k) {
    const bool more = k + kAhead + kWords * Op::kElements <= x.depth;
    for (int64_t j = 0; j < x.columns; j += kCount) {
      Words b[kWords];
#pragma GCC unroll 4
      for (int q = 0; q < kWords; ++q) {
        const int64_t depth = k + q * Op::kElements;
        const In* line = source + depth * x.stride + j;
        b[q] = load_across<Op>(line, depth + 1 < x.depth ? line + x.stride : nullptr, x.columns - j);
        if (more) {
          __builtin_prefetch(line + kAhead * x.stride, 0, 2);
          if (Op::kElements == 2) __builtin_prefetch(line + (kAhead + 1) * x.stride, 0, 2);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        auto* at = sums + i * width + j;
        Sum sum = load<Sum>(at);
#pragma GCC unroll 4
        for (int q = 0; q < kWords; ++q) sum = Op::step(sum, a[q * kRows + i], b[q]);
        store(at, sum);
      }
    }
    a += kWords * kRows;
  };
  constexpr int64_t kStep = kTogether * Op::kElements;
  int64_t k = 0;
  for (; k + kStep <= x.depth; k += kStep) add(std::integral_constant<int, kTogether>(), k);
  for (; k < x.depth; k += Op::kElements) add(std::integral_constant<int, 1>(), k);
}

template <class Op, class In, int... kRow>
inline void few_rows_of(const FewRowsArguments& x, std::integer_sequence<int, kRow...>) {
  static constexpr void (*kRows[])(const FewRowsArguments&) = {few_rows<Op, In, kRow + 1>...};
  kRows[x.rows - 1](x);
}

template <class Op, class In, class Out>
void multiply_few_rows(const FewRowsArguments& x) {
  using Sum = Register<typename Op::Sum>;
  constexpr int kCount = kLanes<typename Op::Sum>;
  few_rows_of<Op, In>(x, std::make_integer_sequence<int, kMostFewRows<Op>>());
  const auto* sums = static_cast<const typename Op::Sum*>(x.accumulators);
  for (int64_t i = 0; i < x.rows; ++i) {
    Out* out = static_cast<Out*>(x.out) + i * x.out_stride;
    for (int64_t j = 0; j < x.columns; j += 2 * kCount, sums += 2 * kCount) {
      write_columns<Op>(out + j, load<Sum>(sums), load<Sum>(sums + kCount), x.columns - j, x.stream);
    }
  }
  if (x.stream) Machine::fence();
}

}  // namespace
}  // namespace jf::grouped::cpu
