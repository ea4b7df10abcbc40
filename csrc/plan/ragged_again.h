// Folds of rows that need another fold of the same rows: the rows are read again rather than kept.
#pragma once

#include <utility>
#include <vector>

#include "ir/fusion.h"

namespace jf::plan {

// Whether a fold of rows depends on another one.
bool folds_again(const ir::Fusion& segment);
// The segment in which what such a fold needs of its rows is computed for it alone.
ir::Fusion with_rows_again(const ir::Fusion& segment);
// The same of values with several ragged axes whose folds leave some of these: pairs of two rows, folded for each row.
bool folds_pairs_again(const ir::Fusion& segment);
ir::Fusion with_pairs_again(const ir::Fusion& segment);

// The segment in which what is wider than the rows in memory is made of them anew for each of such folds, so that what
// a block keeps is narrow.
ir::Fusion with_rows_widened_again(const ir::Fusion& segment);
// The segment in which nested values are computed once for each order of their axes that they are read in: x and x
// turned, where both are added.
ir::Fusion with_turned_rows_again(const ir::Fusion& segment);

// One of the folds that come from equally many others, and what is computed for those, they themselves included; what
// follows from folds is with the last ones.
std::vector<std::pair<ir::ValueId, std::vector<ir::ValueId>>> values_of_folds(const ir::Fusion& segment);

}  // namespace jf::plan
