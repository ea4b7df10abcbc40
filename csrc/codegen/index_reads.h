// Integers of memory as loop bounds and places, in both languages. Included after their preludes.
#pragma once

namespace jf {

// Brought into [0, high].
template <class I, class M>
JF_FUNCTION I read_index(const M* p, long at, long high) {
  const long x = long(p[at]);
  return I(x < 0 ? 0 : x > high ? high : x);
}

}  // namespace jf
