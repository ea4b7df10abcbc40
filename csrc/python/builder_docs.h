// What Python's help says of Builder's methods. Shapes count elements; a value is the number that a method returned.
#pragma once

namespace jf::python::builder_docs {

inline constexpr const char* kClass = "Builds a fusion op by op; jax_fuser.ir.Builder has more.";
inline constexpr const char* kIsFull = "Whether the fusion has `max_ops` ops, so that another one is refused.";
inline constexpr const char* kRepeated =
    R"(Return those of `values` that are better stored, for what is `wanted`.

Of a value with many slices and paddings each computes it again: store() the ones returned before they are made.

Args:
  values: the values that could be stored.
  wanted: the values that the fusion is to make.)";
inline constexpr const char* kStore =
    "Let later slices and paddings of the value read it from memory, instead of computing it again.";
inline constexpr const char* kSetName =
    R"(Call the result of an op by a name in the fusion's text, instead of t and a number.

A name that another value or the fusion has, and one of an input or of a value that has a name, changes nothing. Other
characters than letters, digits and _ become _.)";
inline constexpr const char* kInput =
    R"(Add an input and return its value.

Args:
  name: how the fusion calls it; a number is added where that is taken.
  dtype: "f32", "bf16", "f16", "f64", "s8" to "s64", "u8" to "u64", "pred", "f8e4m3fn" or "f8e5m2".
  shape: its extents.

Raises:
  UserError: for another dtype, and for negative extents.)";
inline constexpr const char* kConstant =
    R"(Return a scalar, of shape []; broadcast() gives it another one.

Raises:
  UserError: for a number that the dtype does not hold.)";
inline constexpr const char* kIota =
    R"(Return an array of `shape` whose elements are their own index along axis `dim`.

Raises:
  UserError: for pred, for an axis that there is not, and for indices that the dtype does not hold.)";
inline constexpr const char* kPointwise =
    R"(Return an op of values of one shape, element by element, as an array of that shape.

Args:
  op: its name; jax_fuser.ir.ops("pointwise") lists them.
  inputs: its operands. Nothing is broadcast or converted.
  label: a comment in generated code.

Raises:
  UserError: for an unknown op, another number of operands, and shapes or dtypes that it does not take.)";
inline constexpr const char* kConvert =
    "Return the value in another dtype, rounded to nearest even; floats become integers towards zero. \"u4\", the last "
    "four bits of integers, is only stored, two to a byte: an output whose array is u8 of half the last axis.";
inline constexpr const char* kBitcast =
    R"(Return the bits of the value as another dtype.

Raises:
  UserError: for a dtype of another size.)";
inline constexpr const char* kBroadcast =
    R"(Return the value repeated to `shape`.

Args:
  shape: extents of the result.
  dims: for each axis of the value, which axis of the result it is; ascending. Its extent there is the same, or 1 in the
    value.

Raises:
  UserError: for other dims and extents.)";
inline constexpr const char* kTranspose =
    R"(Return the value with its axes in another order: axis i of the result is axis permutation[i].

Raises:
  UserError: for numbers that are no permutation of the axes.)";
inline constexpr const char* kConcat =
    R"(Return values side by side along an axis.

What reads the result computes the operand that it needs; the result is in memory only as an output, in parts.

Raises:
  UserError: for no value, for dtypes that differ, and extents that differ along another axis.)";
inline constexpr const char* kSlice =
    R"(Return some elements of a value; what it is computed from is sliced, so that only those are computed.

Args:
  starts: the first index along each axis.
  strides: the step from one to the next, negative ones backwards.
  counts: the extents of the result.

Raises:
  UserError: where an element lies outside of the value.)";
inline constexpr const char* kReshape =
    R"(Return the elements in their row-major order under another shape of as many elements.

Raises:
  UserError: for a shape of another number of elements.)";
inline constexpr const char* kTake =
    R"(Return elements at computed places, as a gather does: rows x[i] of i: s32[n] are
`take(x, [i broadcast to (n, columns)], [0], [-1, 1], [n, columns])`.

Args:
  indices: integers of the result's shape, brought into the bounds of the axis.
  axes: which axis of the value each of them is the index along.
  dims: for each axis of the value, along which axis of the result it goes on from there, -1 for none.
  shape: extents of the result.

Raises:
  UserError: for axes, dims and shapes that do not fit.)";
inline constexpr const char* kSearch =
    R"(Return how many elements of a table, sorted along its last axis, are <= each number: s32 of the numbers' shape.

Args:
  table: integers.
  numbers: of the same dtype.
  side: "left" counts those that are < the number.
  dims: for each axis of the table before the last, along which axis of the numbers it goes.

Raises:
  UserError: for another side, and for dtypes and dims that do not fit.)";
inline constexpr const char* kPad =
    R"(Return a value with elements added along each axis; what it is computed from is padded.

Args:
  low: how many before the first one of each axis; negative numbers cut off as many.
  high: how many behind the last one.
  padding: what they are, a scalar of the value's dtype.

Raises:
  UserError: for another number of axes, extents below 0, and a padding of another type.)";
inline constexpr const char* kSqueeze =
    R"(Return the value without the axes `dims`, which have the extent 1.

Raises:
  UserError: for an axis of another extent, or that there is not.)";
inline constexpr const char* kReduce =
    R"(Return the value with the axes `dims` (ascending) folded away; 16-bit floats are folded in f32.

Args:
  op: its name; jax_fuser.ir.ops("reduce") lists them.
  parts: above 0, the first of the axes is folded in that many runs, which an axis in its place counts.

Raises:
  UserError: for an unknown op, a dtype that it does not take, and axes that there are not.)";
inline constexpr const char* kScan =
    R"(Return the value carried along an axis: element i is the fold of the elements up to i, its own included.

Args:
  op: its name; jax_fuser.ir.ops("scan") lists them.
  reverse: whether it goes from the last element to the first.
  factors: of scan_linear, of the value's shape: each element is what stands before it, 0 before the first one, and
    behind an element stand its value and its factor times that; with scan_linear_resets its value alone where the
    factor is NaN.

Raises:
  UserError: for an unknown op, factors of another op or none of these, and dtypes and axes that it does not take.)";
inline constexpr const char* kGroupedMatmul =
    R"(Multiply rows by the matrix of their group: (m, k) by (groups, k, n) is (m, n) with mode "rows".

Args:
  extents: s32[groups], the rows of each.
  starts: s32[groups], where they begin, or None for one after another.
  mode: "rows"; "contraction", (m, k) by (m, n) is (groups, k, n); or "batch".
  transpose_rhs: whether rhs is (groups, n, k).
  dtype: of the result.
  scaled: 8-bit floats are scaled by "rows" or "blocks"; `scales` are those of lhs and rhs.
  weights, columns: packed weights of four bits, and the columns of their result.
  leaves_padding: rows of no group may hold anything; they are zeros otherwise.

Raises:
  UserError: for shapes, dtypes and modes that do not fit.)";
inline constexpr const char* kPartition =
    R"(Return the rows of each component along an axis: it becomes two, the component and a ragged axis.

Args:
  starts, extents: s32, the first row of each component and how many there are, brought into the array.
  most: the largest number of rows of a component.
  components: how many of the last axes of the extents are the component; without it one, and others are outer axes of
    the value.

Raises:
  UserError: for an axis that there is not, and starts and extents of other types.)";
inline constexpr const char* kNotePartition =
    "Say that `nested` is this partition of a value, so that what is computed from it reads no array of rows.";
inline constexpr const char* kStretch =
    R"(Return the value with a ragged axis, of the extents, in the place of `axis`, whose extent is 1.

Args:
  most: the largest number of rows of a component.
  by: which axes of the value are the component.

Raises:
  UserError: for an axis of another extent, and axes that do not index the extents.)";
inline constexpr const char* kBroadcastLike =
    R"(Return a dense value with the axes of a nested one: its axis i is axis dims[i] of `like`.

Raises:
  UserError: for dims and extents that do not fit.)";
inline constexpr const char* kCombine =
    R"(Return the rows of all components of a nested value in one axis of `rows` elements, zeros between them.

Args:
  starts: s32, where each component begins.
  components: how many axes the component has.

Raises:
  UserError: for a dense value, and starts of another type.)";
inline constexpr const char* kCombineSeveral = "The same of a value with several ragged axes.";
inline constexpr const char* kSelect =
    "Return the rows of one component of a nested value as an array, zeros behind the last one.";
inline constexpr const char* kSplit =
    R"(Return (value, starts, extents) with runs of `factor` rows as an axis of their own, the last filled with zeros.

Raises:
  UserError: for a dense axis, and a factor below 1.)";
inline constexpr const char* kMerge =
    R"(Return (value, starts, extents) with two axes of a nested value as one.

They are a ragged axis and its component, the dense axis behind it, or the outer axis of its extents.

Raises:
  UserError: for other pairs of axes.)";
inline constexpr const char* kOutput = "Make the value the next output of the fusion.";
inline constexpr const char* kFinish =
    R"(Return the fusion's text, without ops that reach no output; the builder takes no calls after.

Raises:
  UserError: for a fusion without outputs.)";

}  // namespace jf::python::builder_docs
