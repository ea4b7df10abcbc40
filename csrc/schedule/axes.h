// The axes of one scheduled value: its logical axes and all that transforms made of them, as a forest.
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace jf::schedule {

// Nodes are numbered: root axes first, then in the order in which transforms make them.
struct SplitStep {
  int input, outer, inner;
};
struct MergeStep {
  int outer, inner, output;
};
struct InsertStep {
  int output;
  ValueId like;
  int like_axis;
};
// Index of y = index of x ^ index of output, and the same with y and output exchanged. x stays as it is.
struct SwizzleStep {
  int x, y, output;
};
using Step = std::variant<SplitStep, MergeStep, InsertStep, SwizzleStep>;

struct AxisTree {
  std::vector<int64_t> extents;  // by node
  std::vector<bool> reduced;     // by node: whether the value is folded along it
  std::vector<bool> inserted;    // by node: whether the value is the same along it
  // By node: how far apart along the scanned axis its indices are; 0 for other axes.
  std::vector<int64_t> scanned;
  std::vector<Step> steps;   // in the order of the transforms
  std::vector<int> dropped;  // nodes of extent 1 without a loop
  std::vector<int> loop;     // nodes of the loop axes, outermost first
};

// Applies the transforms to the logical axes. Throws UserError, naming `value`, for one that does not apply.
AxisTree replay(const Domain& domain, const std::string& value);
// The outermost loop of a value that threads scan together which they do at once; -1 for every other value, a scan by
// single threads among them. What the threads scan is complete only after it.
int scan_position(const Domain& domain, const std::string& value);
// The part, of a value in parts; -1 for every other value.
int part_node(const Domain& domain);
// Applies one more transform.
void apply(AxisTree& tree, const Transform& transform, const std::string& value);

// Throws UserError unless the loop axes can have their parallel types together.
void check_parallel(const Domain& domain, const std::string& value);
// Throws UserError unless the value can have its stages.
void check_stages(const Domain& domain, const std::string& value);
// The position of the first bulk axis; the number of loop axes where there is none.
int first_bulk(const Domain& domain);
inline bool is_bulk(const Domain& domain) { return first_bulk(domain) < static_cast<int>(domain.loop.size()); }
// How many outer loop axes of two domains agree in extent and parallel type.
int common_loops(const Domain& a, const Domain& b);

// The node of each axis of a value in its domain's tree.
std::vector<int> axis_nodes(const ir::Fusion& fusion, const Domain& domain, ValueId value);
// For each axis of the operand, the root axis of the op's result that has the same index, or -1.
std::vector<int> result_axes(const ir::Fusion& fusion, const ir::Op& op, size_t operand);

// Where in a dense operand the element stands that one of the op's result is computed from: offset + the sum of
// weights[r] * (index of root axis r of the result).
struct Reading {
  // Along root axis `axis` only indices from begin to below end, which may be kNoEnd, have an element.
  struct Range {
    int axis;
    int64_t begin, end;
  };
  std::vector<int64_t> weights;
  int64_t offset = 0;
  std::vector<Range> ranges = {};
  // Added: `weight` times what operand `operand` holds, brought into [0, limit].
  struct Index {
    size_t operand;
    int64_t limit, weight;
  };
  std::vector<Index> indices = {};
};
Reading reading(const ir::Fusion& fusion, const ir::Op& op, size_t operand);
// Where an element of an output is stored: offset + the sum of weights[a] * (index of axis a).
struct Writing {
  std::vector<int64_t> weights;
  int64_t offset = 0;
};
Writing writing(const ir::Fusion& fusion, ValueId output);

}  // namespace jf::schedule
