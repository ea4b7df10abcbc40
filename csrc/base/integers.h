// Integer arithmetic that rounds up, for numbers that are not negative; powers of two; ends of ranges.
#pragma once

#include <cstdint>
#include <limits>

namespace jf {

// The end of a range that has none.
constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return divide_up(a, multiple) * multiple; }

constexpr bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace jf
