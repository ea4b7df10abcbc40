// The dense products of a grouped problem, read from its extents: one segment per group, and one per gap between
// groups.
#pragma once

#include <cstdint>
#include <span>

#include "grouped/cpu/blocks.h"
#include "grouped/cpu/kernels.h"
#include "grouped/problem.h"

namespace jf::grouped::cpu {

// `count` dense products of one shape that follow each other in memory (kBatch; otherwise one). Depth 0 means zeros.
struct Segment {
  int64_t count = 0;
  Extent extent;
  int64_t lhs = 0;  // first element in each operand
  int64_t rhs = 0;
  int64_t out = 0;
  int64_t packed = 0;      // first element in the packed lhs
  int64_t first_pack = 0;  // first packing task
  int64_t first_task = 0;  // first multiplying task
  Blocks blocks;
};

// Room for the segments of the problem.
int64_t segment_bound(const Problem& problem);

// The largest dense product that the extents can ask for.
Extent largest_extent(const Problem& problem);

// Elements of one packed dense lhs.
int64_t packed_elements(const Kernel& kernel, const Extent& extent);
// An upper bound of all of them together.
int64_t packed_bound(const Problem& problem, const Kernel& kernel);

// Fills count, extent and the operands' first elements; returns the used part of `segments`. Segments are ascending and
// do not overlap, whatever the extents and starts hold.
std::span<Segment> find_segments(const Problem& problem, const int32_t* extents, const int32_t* starts,
                                 std::span<Segment> segments);

}  // namespace jf::grouped::cpu
