// Sets of small numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jf {

class Bits {
 public:
  bool test(int i) const { return word(i) < words_.size() && ((words_[word(i)] >> (i & 63)) & 1); }
  void set(int i) {
    if (word(i) >= words_.size()) words_.resize(word(i) + 1, 0);
    words_[word(i)] |= uint64_t{1} << (i & 63);
  }
  // Whether anything was added.
  bool add(const Bits& other) {
    if (other.words_.size() > words_.size()) words_.resize(other.words_.size(), 0);
    bool changed = false;
    for (size_t w = 0; w < other.words_.size(); ++w) {
      changed = changed || (other.words_[w] & ~words_[w]) != 0;
      words_[w] |= other.words_[w];
    }
    return changed;
  }
  template <class Function>
  void each(Function function) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t rest = words_[w]; rest != 0; rest &= rest - 1) {
        function(static_cast<int>(64 * w) + __builtin_ctzll(rest));
      }
    }
  }

 private:
  static size_t word(int i) { return static_cast<size_t>(i) >> 6; }
  std::vector<uint64_t> words_;
};

}  // namespace jf
