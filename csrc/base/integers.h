// Integer arithmetic that rounds up, for numbers that are not negative.
#pragma once

#include <cstdint>

namespace jf {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return divide_up(a, multiple) * multiple; }

}  // namespace jf
