// The fusion IR: what is computed, as static single assignment over values with axes. Says nothing about how.
//
// Meaning. A value is a dense array; its axes are its logical shape, outermost first. An axis is kBroadcast when the
// value is the same along it: only `broadcast` makes such axes, pointwise ops keep them where all operands have them.
// Pointwise ops need operands of equal extents. Low-precision floats are computed in compute_dtype; a value is rounded
// to its dtype where it is stored or converted. Integer arithmetic wraps; division by zero gives -1 (all ones),
// remainder by zero the dividend, shifts by the width or more give 0 or the sign, as in XLA. Floats of 8 bits are only
// converted and moved; numbers that f8e4m3fn does not hold become NaN, those that f8e5m2 does not hold infinite.
//
// A reduction folds whole axes away, in no stated order; low-precision floats are folded in compute_dtype and rounded
// once at the end. Nothing sums to 0, multiplies to 1, has the maximum -inf (or the lowest value), the minimum inf (or
// the highest), and is all ones under and, 0 under or and xor. One NaN makes a maximum or minimum NaN. An axis of kind
// kBroadcast counts as often as its extent says.
//
// A scan keeps the operand's axes: element i along its axis is the fold of elements 0 to i, or with `reverse` of
// elements i to the last, in a stated order of the operands but in any grouping.
//
// A nested value has a ragged axis: for each component, an index of the axes `by`, only so many of its elements exist
// as the s32 value `extents` holds there, brought into [0, extent]. The others are never computed, read or stored, and
// nothing folds them. What it is computed from and what is computed from it has the same axis; nested values live
// inside of a kernel: `partition` makes them of an array, `combine` makes them one again, and a fold leaves a value for
// each component. Several axes can be ragged, each by axes that are not: an element exists where each of them says so.
//
// Every node stands on this screen; they are made by ir/build.h, checked by ir/verify.h, printed and parsed by
// ir/text.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace jf::ir {

using ValueId = int32_t;

enum class AxisKind : uint8_t { kIteration, kBroadcast };

struct Axis {
  int64_t extent = 1;
  AxisKind kind = AxisKind::kIteration;
  // Of a ragged axis: how many elements each component has, and which axes of the value index that, in its order.
  ValueId extents = -1;
  std::vector<int64_t> by = {};
  bool operator==(const Axis&) const = default;
};

struct Value {
  std::string name;  // unique in the fusion, an identifier
  DType dtype;
  std::vector<Axis> axes;
  bool operator==(const Value&) const = default;
};

enum class OpKind : uint8_t {
#define JF_OP(kind, text, arity, op_class, result, operands) kind,
#include "ir/ops.def"
};

enum class OpClass : uint8_t { kConstant, kIota, kView, kPointwise, kReduce, kScan, kConcat, kSearch, kGrouped };
enum class ResultRule : uint8_t { kSame, kPred, kSelect, kStated, kCode };
enum class OperandTypes : uint8_t { kAny, kNumber, kFloating, kInteger, kLogical };

// The columns of ir/ops.def.
struct OpInfo {
  OpKind kind;
  std::string_view name;
  int arity;
  OpClass op_class;
  ResultRule result;
  OperandTypes operands;
};
const OpInfo& info(OpKind kind);
std::span<const OpInfo> ops();
// nullptr for a name that no row has.
const OpInfo* find_op(std::string_view name);
// The pointwise op that joins two parts of a reduction or a scan: kAdd for kReduceSum and kScanSum.
OpKind fold_of(OpKind fold);
// Whether a scan is a linear recurrence.
bool is_recurrence(OpKind scan);
// Whether the op reads its first operand at other places than its own, so that it must be in memory.
bool reads_memory(OpKind kind);
// Whether the op converts or moves values, as is possible with 8-bit floats.
bool moves_float8(OpKind kind);
// Whether the operands after the first are integers that say where and how far a nested value goes.
bool has_nest_operands(OpKind kind);

// A scalar: int64_t for integers (two's complement for u64) and pred, double for floats.
struct Constant {
  std::variant<int64_t, double> value;
  bool operator==(const Constant&) const;  // bitwise, so that NaN equals NaN and -0.0 differs from 0.0
};
Constant zero_of(DType dtype);
// What a reduction of no element gives.
Constant identity_of(OpKind reduce, DType dtype);
// broadcast: operand axis i is result axis dims[i] (increasing), of equal extent or extent 1.
// transpose: result axis i is operand axis dims[i]. squeeze: the operand axes of extent 1 that go. iota: the axis
// counted. reshape: none, the elements in their order under another shape. spread: the axis of which each of the
// operand's elements stands for ceil(extent / operand's extent) neighbours. concat: the axis along which the operands,
// results of place, stand side by side.
struct Dims {
  std::vector<int64_t> dims;
  bool operator==(const Dims&) const = default;
};
// Element i of a result axis is element start + i * stride of the operand's; strides may be negative.
struct Slice {
  std::vector<int64_t> starts, strides;
  bool operator==(const Slice&) const = default;
  // Whether `count` elements of an axis are all that it has, in their order.
  bool keeps(size_t axis, int64_t count, int64_t extent) const { return starts[axis] == 0 && count == extent; }
};
// Element low + j of a result axis, for j < counts, is element starts + j * strides of the operand's; where any axis is
// outside of that, the result is zero and the operand is not read.
struct Pad {
  Slice from;
  std::vector<int64_t> low, counts;
  bool operator==(const Pad&) const = default;
};
// Reads operand 0 where the other operands, integers of the result's shape, say: its axis axes[k] at index k, brought
// into [0, limits[k]]. Each axis a of it also moves on by starts[a] + strides[a] * (index of result axis dims[a]), or
// by starts[a] where dims[a] is -1.
struct Take {
  std::vector<int64_t> axes, limits, dims, starts, strides;
  bool operator==(const Take&) const = default;
};
// Operand 0 is a table, sorted along its last axis; operand 1 has integers of its dtype. Each becomes the number of
// elements of the table that are not above it, or with `left` below it. The other axes of the table have the index of
// the result axes dims (increasing), which are of equal extent. Where a table is not sorted, the result is some number
// from 0 to its length.
struct Search {
  bool left = false;
  std::vector<int64_t> dims = {};
  bool operator==(const Search&) const = default;
};
// The operand again, stored as a part of a larger array of `shape`, from element `starts` on. Only an output or an
// operand of concat.
struct Place {
  std::vector<int64_t> starts, shape;
  bool operator==(const Place&) const = default;
};
// The operand axes dims (increasing) go, folded. With parts > 0 the axis dims[0] is folded in `parts` runs of
// ceil(extent / parts) consecutive indices, the last ones shorter or empty, and an axis of extent `parts` takes its
// place; 1 <= parts <= extent. With in_turn, part p has the indices p, p + parts, p + 2 * parts, ... The other axes
// keep their kinds.
struct Reduce {
  std::vector<int64_t> dims;
  int64_t parts = 0;
  bool in_turn = false;
  bool operator==(const Reduce&) const = default;
};
// The operand's axis along which a value is carried, from the first element on or from the last one. With parts > 0
// each of `parts` runs of ceil(extent / parts) consecutive indices is scanned by itself.
struct Scan {
  int64_t axis = 0;
  bool reverse = false;
  int64_t parts = 0;
  bool operator==(const Scan&) const = default;
};
// partition: axis `axis` of the operand becomes the component, of `components` axes, the last ones of the extents, and
// a ragged axis of `most` elements. stretch: axis `axis` of the operand, of extent 1, becomes a ragged axis of `most`
// elements along which the value is the same; its axes `by` index the extents.
struct Nest {
  int64_t axis = 0, most = 0;
  std::vector<int64_t> by = {};
  int64_t components = 1;
  // partition: more axes of the operand that become ragged, behind `axis` and increasing, as axis, most, axis, most..;
  // each has a component of one axis, and starts and extents of its own.
  std::vector<int64_t> also = {};
  bool operator==(const Nest&) const = default;
};
// The component, of so many axes, goes and the ragged axis becomes one of `rows` elements: zeros where no component has
// any. `also`: the elements of what the other ragged axes become, in their order; then each has a component of one axis
// and starts of its own.
struct Combine {
  int64_t rows = 0;
  int64_t components = 1;
  std::vector<int64_t> also = {};
  bool operator==(const Combine&) const = default;
};
enum class GroupedMode : uint8_t { kRows, kContraction, kBatch };
// What rhs holds, as in grouped/problem.h.
enum class GroupedWeights : uint8_t { kNumbers, kMxfp4, kNvfp4, kInt4By32, kInt4By64 };
// What the elements of 8-bit floats are multiplied by: see grouped/problem.h.
enum class GroupedScales : uint8_t { kNone, kRows, kBlocks };
constexpr int64_t kScaleBlock = 128;  // elements along one axis
// Operands (lhs, rhs, extents[, starts][, scales of lhs, of rhs][, factors of weights]); shapes as in
// grouped/problem.h.
struct Grouped {
  GroupedMode mode = GroupedMode::kRows;
  bool transpose_rhs = false;
  GroupedScales scales = GroupedScales::kNone;
  GroupedWeights weights = GroupedWeights::kNumbers;
  int64_t columns = 0;          // of the result, where rhs does not say
  bool leaves_padding = false;  // kRows: rows of no group may hold anything
  bool operator==(const Grouped&) const = default;
};
std::string_view name(GroupedWeights weights);  // "mxfp4", .., "int4x64"
// Throws UserError for another name.
GroupedWeights parse_weights(std::string_view name);
using Attribute =
    std::variant<std::monostate, Constant, Dims, Slice, Pad, Take, Search, Place, Reduce, Scan, Nest, Combine, Grouped>;

struct Op {
  OpKind kind;
  std::vector<ValueId> inputs;
  ValueId output;
  Attribute attribute;
  std::string label;  // the user's name for it; printed as a comment, without meaning
  bool operator==(const Op&) const = default;
};

// Topological order: a value is an input or the output of exactly one op that stands before every use.
struct Fusion {
  std::string name;
  std::vector<Value> values;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<Op> ops;
  bool operator==(const Fusion&) const = default;
};

// The position of a value's ragged axis, the first one of several; -1 where it is dense.
int ragged_axis(const Value& value);
std::vector<int> ragged_axes(const Value& value);
int64_t elements(const Value& value);
std::vector<int64_t> shape(const Value& value);
std::vector<Axis> axes_of(std::span<const int64_t> shape);
// The op that makes a value; null for an input.
const Op* definition(const Fusion& fusion, ValueId value);
// Whether the value is this integer everywhere.
bool is_number(const Fusion& fusion, ValueId value, int64_t number);
// Numbers the values in the order in which the text form defines them: inputs, then results. Returns each value's new
// number by its old one.
std::vector<ValueId> number_as_text(Fusion& fusion);

}  // namespace jf::ir
