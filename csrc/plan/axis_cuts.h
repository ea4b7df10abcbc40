// Into which parts the axes of a fusion have to be cut so that its reshapes move nothing.
//
// A reshape is free where each axis of its result is a run of parts of the operand's axes. Ops between two reshapes
// hand the cuts on, so that [rows, heads * width] -> [rows, heads, width] -> ... -> [rows, heads * width] is computed
// over [rows, heads, width] throughout, and what is read and written is the same memory by another shape.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "ir/fusion.h"

namespace jf::plan {

struct AxisCuts {
  // By value and axis: the extents of the parts, the slowest first. Their product is the axis's extent.
  std::vector<std::vector<std::vector<int64_t>>> parts;
  // Results of reshapes for which there are no such parts: they have to be read from memory.
  std::set<ir::ValueId> moved;
};
AxisCuts cut_axes(const ir::Fusion& fusion);

// The elements start, start + stride .. of an axis, `count` of them, as a range of each of its parts; nothing where
// they are none.
struct PartRange {
  int64_t start, count, stride;
};
std::optional<std::vector<PartRange>> part_ranges(const std::vector<int64_t>& parts, int64_t start, int64_t count,
                                                  int64_t stride = 1);

}  // namespace jf::plan
