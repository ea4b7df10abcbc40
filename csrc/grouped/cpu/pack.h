// Packs an operand into panels: [panel][depth][width of the panel].
//
// An Op (multiply.h) joins Op::kElements neighbours along the depth in one Word: pairs of an odd depth end with a zero.
#pragma once

#include "grouped/cpu/kernels.h"
#include "grouped/cpu/vectors.h"

namespace jf::grouped::cpu {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t value, int64_t multiple) { return divide_up(value, multiple) * multiple; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

template <class Word>
inline void store_lanes(Word* to, Register<Word> value, int64_t lanes) {
  for (int64_t i = 0; i < lanes; ++i) to[i] = value[i];
}

// A register of words from `line` at one depth and, where words are pairs, `next` one deeper (null: zeros).
template <class Op, class In>
inline Register<typename Op::Word> load_across(const In* line, const In* next) {
  if constexpr (Op::kElements == 1) {
    return Format<In, typename Op::Word>::load_lanes(line);
  } else {
    FloatBits words = Op::widen(line);
    if (next) words |= Op::widen(next) << 16;
    return words;
  }
}

// A register of words along the depth.
template <class Op, class In>
inline Register<typename Op::Word> load_along(const In* from) {
  if constexpr (Op::kElements == 1) {
    return Format<In, typename Op::Word>::load_lanes(from);
  } else {
    return load<Register<typename Op::Word>>(from);
  }
}

// The first `count` elements of a short line, zeros behind them.
template <class In, int kCount>
struct Padded {
  Padded(const In* from, int64_t count) {
    std::memset(elements, 0, sizeof(elements));
    std::memcpy(elements, from, count * sizeof(In));
  }
  In elements[kCount];
};

template <class Op, class In>
inline Register<typename Op::Word> load_across(const In* line, const In* next, int64_t lanes) {
  constexpr int kCount = kLanes<typename Op::Word>;
  if (lanes >= kCount) return load_across<Op>(line, next);
  if (lanes <= 0) return Register<typename Op::Word>{};
  const Padded<In, kCount> line_padded(line, lanes);
  if (!next) return load_across<Op>(line_padded.elements, next);
  return load_across<Op>(line_padded.elements, Padded<In, kCount>(next, lanes).elements);
}

template <class Op, class In>
inline Register<typename Op::Word> load_along(const In* from, int64_t elements) {
  constexpr int kCount = kLanes<typename Op::Word> * Op::kElements;
  if (elements >= kCount) return load_along<Op>(from);
  return load_along<Op>(Padded<In, kCount>(from, elements).elements);
}

// Source [depth, width]: copies lines, kDeep of each panel before the next panel's, so that a wide rhs streams from
// memory and stores fill whole lines of the cache.
template <class Op, class In, int kPanel, int kGranule>
void pack_lines(const PackArguments& x) {
  using Word = typename Op::Word;
  constexpr int kCount = kLanes<Word>;
  constexpr int64_t kDeep = 8;
  constexpr int64_t kLineLanes = 64 / sizeof(In);
  const In* source = static_cast<const In*>(x.source);
  const int64_t depth_end = round_up(x.depth_end, Op::kDepthGranule);
  for (int64_t top = x.depth_begin; top < depth_end; top += kDeep) {
    const int64_t bottom = least(top + kDeep, depth_end);
    for (int64_t begin = 0; begin < x.width; begin += kPanel) {
      const int64_t width = least(kPanel, x.width - begin);
      const int64_t height = round_up(width, kGranule);
      for (int64_t k = top; k < bottom; k += Op::kElements) {
        const In* line = k < x.depth_end ? source + k * x.stride + begin : nullptr;
        const In* next = k + 1 < x.depth_end ? line + x.stride : nullptr;
        // Into level 2: in level 1 they would push each other out.
        if (k + kDeep + 1 < x.depth_end) {
          for (int64_t i = 0; i < width; i += kLineLanes) {
            __builtin_prefetch(line + kDeep * x.stride + i, 0, 2);
            if (Op::kElements == 2) __builtin_prefetch(line + (kDeep + 1) * x.stride + i, 0, 2);
          }
        }
        Word* panel = static_cast<Word*>(x.packed) + (begin * x.packed_depth + k * height) / Op::kElements;
        if constexpr (kPanel == 2 * kCount && requires { Op::interleave(line, next, panel); }) {
          if (width == kPanel && next) {
            Op::interleave(line, next, panel);
            continue;
          }
        }
        for (int64_t i = 0; i < height; i += kCount) {
          Register<Word> words{};
          if (line) words = load_across<Op>(line + i, next ? next + i : nullptr, x.width - begin - i);
          if (height - i >= kCount) {
            store(panel + i, words);
          } else if (height == kPanel) {
            std::memcpy(panel + i, &words, kPanel % kCount * sizeof(Word));
          } else {
            store_lanes(panel + i, words, height - i);
          }
        }
      }
    }
  }
}

// Source [width, depth]: transposes squares of registers.
template <class Op, class In, int kPanel, int kGranule>
void pack_transposed(const PackArguments& x) {
  using Word = typename Op::Word;
  constexpr int kCount = kLanes<Word>;
  constexpr int kStep = kCount * Op::kElements;
  const In* source = static_cast<const In*>(x.source);
  const int64_t depth_end = round_up(x.depth_end, Op::kDepthGranule);
  for (int64_t begin = 0; begin < x.width; begin += kPanel) {
    const int64_t width = least(kPanel, x.width - begin);
    const int64_t height = round_up(width, kGranule);
    Word* panel = static_cast<Word*>(x.packed) + begin * x.packed_depth / Op::kElements;
    for (int64_t i = 0; i < height; i += kCount) {
      const int64_t lanes = least(kCount, height - i);
      const In* lines = source + (begin + i) * x.stride;
      for (int64_t k = x.depth_begin; k < depth_end; k += kStep) {
        Register<Word> square[kCount];
        if (width - i >= kCount && x.depth_end - k >= kStep) {
#pragma GCC unroll 16
          for (int j = 0; j < kCount; ++j) square[j] = load_along<Op>(lines + j * x.stride + k);
        } else {
          for (int j = 0; j < kCount; ++j) {
            square[j] = i + j < width && k < x.depth_end ? load_along<Op>(lines + j * x.stride + k, x.depth_end - k)
                                                         : Register<Word>{};
          }
        }
        transpose<Word>(square);
        const int64_t words = least(kCount, (depth_end - k) / Op::kElements);
        Word* to = panel + k / Op::kElements * height + i;
        // In a narrow panel a store of all lanes runs into the next lines, which are written after it.
        const bool room = to + (kCount - 1) * height + kCount <= panel + depth_end / Op::kElements * height;
        const int64_t whole = lanes == kCount || (height <= kCount && room) ? words : 0;
        if (whole == kCount) {
#pragma GCC unroll 16
          for (int j = 0; j < kCount; ++j) store(to + j * height, square[j]);
        } else {
          for (int64_t j = 0; j < words; ++j) {
            Register<Word> word;
            std::memcpy(&word, &square[j], sizeof(word));
            if (j < whole) {
              store(to + j * height, word);
            } else {
              store_lanes(to + j * height, word, lanes);
            }
          }
        }
      }
    }
  }
}

template <class Op, class In, int kPanel, int kGranule>
void pack(const PackArguments& x) {
  if (x.depth_contiguous) {
    pack_transposed<Op, In, kPanel, kGranule>(x);
  } else {
    pack_lines<Op, In, kPanel, kGranule>(x);
  }
}

}  // namespace
}  // namespace jf::grouped::cpu
