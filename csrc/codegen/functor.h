// What a loop program does at one place, as a functor for a kernel that is written by hand.
#pragma once

#include <string>
#include <vector>

#include "base/target.h"
#include "loops/kernel.h"

namespace jf::codegen {

// A kernel of two serial loops, a row's and in it a column's, each the last statement of the body that it is in. The
// sums that a place has are the array `sums`; what they become is the array `result`.
struct Functor {
  std::vector<int> members;  // the buffers that it reads
  int group;                 // a variable: the row's group
  int sums, result;
  std::vector<int64_t> first;  // the column of each sum in column 0 of the result
  // What a buffer [rows, columns] holds at the result's place, `first` columns further: the array `array`.
  struct Tile {
    int array, buffer;
    int64_t columns, first;
  };
  std::vector<Tile> tiles;
  // With several results the array `result` has so many elements, and one more if the functor `folds`.
  int results = 0;
  bool folds = false;
  bool keeps = false;  // the sums are stored, too
};

// `struct Epilogue` as grouped/cuda/hopper_epilogue.cuh describes it, or hopper_several.cuh if it has several results,
// after the headers that it needs.
std::string generate_functor(const loops::Kernel& kernel, const Functor& functor, const Target& target);

}  // namespace jf::codegen
