#include "grouped/cpu/segments.h"

#include <algorithm>

namespace jf::grouped::cpu {
namespace {

// Rows [begin, end) of `group`; of no group when it is negative.
Segment make_segment(const Problem& p, int64_t group, int64_t begin, int64_t end) {
  Segment segment;
  segment.count = 1;
  switch (p.mode) {
    case Mode::kRows:
      segment.extent = {end - begin, p.n, group < 0 ? 0 : p.k};
      segment.lhs = begin * p.k;
      segment.rhs = std::max<int64_t>(group, 0) * p.k * p.n;
      segment.out = begin * p.n;
      break;
    case Mode::kContraction:
      segment.extent = {p.k, p.n, end - begin};
      segment.lhs = begin * p.k;
      segment.rhs = begin * p.n;
      segment.out = group * p.k * p.n;
      break;
    case Mode::kBatch:
      segment.count = end - begin;
      segment.extent = {p.rows, p.n, group < 0 ? 0 : p.k};
      segment.lhs = begin * p.rows * p.k;
      segment.rhs = begin * p.k * p.n;
      segment.out = begin * p.rows * p.n;
      break;
  }
  return segment;
}

}  // namespace

int64_t segment_bound(const Problem& problem) { return 2 * problem.groups + 1; }

Extent largest_extent(const Problem& p) {
  switch (p.mode) {
    case Mode::kRows: return {p.m, p.n, p.k};
    case Mode::kContraction: return {p.k, p.n, p.m};
    case Mode::kBatch: return {p.rows, p.n, p.k};
  }
  return {};
}

int64_t packed_elements(const Kernel& kernel, const Extent& extent) {
  return round_up(extent.rows, kernel.row_granule) * round_up(extent.depth, kernel.depth_granule);
}

int64_t packed_bound(const Problem& p, const Kernel& kernel) {
  const int64_t filled = std::min(p.groups, p.m);  // groups that can have rows
  switch (p.mode) {
    case Mode::kRows: return (p.m + filled * (kernel.row_granule - 1)) * round_up(p.k, kernel.depth_granule);
    case Mode::kContraction: return (p.m + filled * (kernel.depth_granule - 1)) * round_up(p.k, kernel.row_granule);
    case Mode::kBatch: return p.m * packed_elements(kernel, largest_extent(p));
  }
  return 0;
}

std::span<Segment> find_segments(const Problem& p, const int32_t* extents, const int32_t* starts,
                                 std::span<Segment> segments) {
  const bool gaps = p.mode != Mode::kContraction;
  size_t used = 0;
  int64_t end = 0;  // of the groups so far
  for (int64_t group = 0; group < p.groups; ++group) {
    const int64_t extent = std::clamp<int64_t>(extents[group], 0, p.m);
    const int64_t start = starts && extent > 0 ? std::clamp<int64_t>(starts[group], 0, p.m) : end;
    const int64_t begin = std::max(start, end);
    const int64_t next = std::clamp(start + extent, begin, p.m);
    if (gaps && begin > end) segments[used++] = make_segment(p, -1, end, begin);
    if (!gaps || next > begin) segments[used++] = make_segment(p, group, begin, next);
    end = next;
  }
  if (gaps && end < p.m) segments[used++] = make_segment(p, -1, end, p.m);
  return segments.first(used);
}

}  // namespace jf::grouped::cpu
