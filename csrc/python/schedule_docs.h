// What Python's help says of Fusion, Schedule, Scheduler and IndexGraph.
#pragma once

namespace jf::python::schedule_docs {

inline constexpr const char* kFusion =
    R"(What is computed: ops over values, parsed from its text. Equal texts are equal.

Every method takes a value's name, and raises UserError for one that there is not.

Example:
  >>> import jax_fuser as jf
  >>> f = jf.ir.Fusion("fusion f(x: f32[4,8]) -> (t1) {\n  t1: f32[4] = reduce_sum(x) {dims=[1]}\n}\n")
  >>> f.inputs, f.outputs, f.shape("t1"), f.dtype("t1"), f.is_reduction("t1")
  (['x'], ['t1'], [4], 'f32', True))";
inline constexpr const char* kName = "The fusion's name, an identifier; its kernels are called after it.";
inline constexpr const char* kValues = "The names of all values, in the order of their definitions.";
inline constexpr const char* kInputs = "The names of the inputs, in the order in which arrays are passed.";
inline constexpr const char* kOutputs = "The names of the outputs, in the order in which arrays are returned.";
inline constexpr const char* kIsReduction = "Whether an op folds axes to make the value.";
inline constexpr const char* kDtype = R"(Return the value's dtype: "f32", "bf16", "s32", "pred", ..)";
inline constexpr const char* kShape = "Return the value's extents, in elements; a ragged axis at its longest.";

inline constexpr const char* kSchedule = R"(How a fusion is computed: a value that prints, parses and compares.

Every method takes a value's name, and raises UserError for one that there is not.

Example:
  >>> import jax.numpy as jnp
  >>> import jax_fuser as jf
  >>> s = jf.ir.Schedule(jf.ir.trace(jnp.tanh, jnp.ones((6, 8))))
  >>> s.loops("t1"), s.inline_position("t1"), s.memory("t1")
  ([(6, 'serial'), (8, 'serial')], 0, 'register'))";
inline constexpr const char* kParse =
    R"(Parse a schedule of a fusion; without text every value has its own serial loops.

Raises:
  UserError: for a text that is none, or of another fusion.)";
inline constexpr const char* kOf = "The fusion that it is of.";
inline constexpr const char* kLoops =
    R"(Return (extent, parallel type) of each loop axis of a value, outermost first.

An extent counts iterations, those without an element included. Axes are numbered in this order, -1 is the innermost.)";
inline constexpr const char* kInlinePosition = "Return how many outer loops the value shares with its consumers.";
inline constexpr const char* kMemory = R"(Return where the value is kept: "register" or "shared".)";
inline constexpr const char* kPositions =
    R"(Return for each iteration of the value's loops, in order, which element it is of.

Args:
  weights: the result is the sum of weight times index over the value's root axes; by default the row-major element.

Returns:
  A list with None where a bound keeps the iteration out.)";

inline constexpr const char* kScheduler = R"(Edits the schedule of one fusion.

Every call takes a value's name, and loop axes by number: 0 is the outermost, -1 the innermost. Axes are transformed
before they are parallelized. A call raises UserError for a value or an axis that there is not and changes nothing then;
what cannot be compiled is refused by `jax_fuser.ir.lower`, which names the value and the call that mends it.

Example:
  >>> import jax.numpy as jnp
  >>> import jax_fuser as jf
  >>> s = jf.ir.Scheduler(jf.ir.trace(jnp.tanh, jnp.ones((6, 8))))
  >>> s.split("t1", 1, 4)
  >>> s.parallelize("t1", -1, "vector")
  >>> s.loops("t1")
  [(6, 'serial'), (2, 'serial'), (4, 'vector')]
  >>> print(s)
  schedule {
    t1[6,8]: split(1,4) -> [6, 2, 4 vector]
  }
  <BLANKLINE>)";
inline constexpr const char* kNow = "The schedule as it is now, a value that later edits leave as it is.";
inline constexpr const char* kFusionNow =
    "The fusion as it is now: with the values that cache_after, cache_before, cache_fork and rfactor added.";
inline constexpr const char* kSplit =
    R"(Make two loop axes of one: of extent n those of ceil(n / factor) and factor iterations.

Args:
  factor: the inner one's extent, or with inner=False the outer one's. It need not divide n: iterations without an
    element do nothing.

Raises:
  UserError: for a factor below 1.)";
inline constexpr const char* kMerge =
    R"(Make one loop axis of this one and the next one; its extent is their product.

Raises:
  UserError: for the last axis, a folded axis beside one that is kept, and a scanned one beside one that does not go on
    from it.)";
inline constexpr const char* kPad =
    R"(Extend the axis at its end to the next multiple of a number of iterations, a warp's threads for example.

The iterations added have no element. It is a split by the new extent and a merge of its two axes, and the text of the
schedule says so.

Raises:
  UserError: for a multiple below 1.)";
inline constexpr const char* kReorder =
    R"(Put the loop axes in another order: new axis i is old axis order[i].

Raises:
  UserError: for numbers that do not list every axis once.)";
inline constexpr const char* kSwizzle =
    R"(Let axis y be x ^ y, so that neighbours along x lie in different banks of shared memory.

Raises:
  UserError: where the two have no common extent that is a power of two.)";
inline constexpr const char* kParallelize =
    R"(Say what runs the iterations of a loop axis.

Args:
  parallel: "serial", "unroll" or "vector" (lanes of one instruction; a power of two, innermost). On the CPU "task",
    what threads take. On CUDA "block", "block_y", "thread", "thread_y"; on compute capability 9.0 "cluster", up to 8
    blocks that fold together, and "bulk", the innermost axes of a shared copy of an input, moved by one instruction.

Raises:
  UserError: for another name.)";
inline constexpr const char* kTransformLike =
    R"(Give every other value, or the selected ones, the loops of the reference.

Axes correspond through the ops between two values; an axis that a value lacks becomes a loop that runs once there, and
those that the reference lacks, such as folded ones, stay behind.

Raises:
  UserError: for a selected value that shares no axes with the reference.)";
inline constexpr const char* kParallelizeLike =
    R"(Copy the parallel types of the reference to values with the same loop extents.

Args:
  selected: those values; all of them by default.
  position: only those of its outer loops, to values with the same outer extents.
  types: only these parallel types.

Raises:
  UserError: for a position beyond its loops, and another name of a type.)";
inline constexpr const char* kInlineAt =
    R"(Compute the value inside the outer `position` loops of its consumers, so that it has room for what is inside.

Args:
  best_effort: inside those of them that it has in common with its consumers, where these are fewer.

Raises:
  UserError: for a position beyond the loops in common.)";
inline constexpr const char* kInlineMost =
    R"(Inline every value, or the selected ones, as deep as its loops agree with its consumers' and it is not computed
more often than needed.)";
inline constexpr const char* kSetMemory =
    R"(Say where a value is kept between the loops that make it and those that read it.

Args:
  memory: "register", or "shared": one copy for the threads of a block (CUDA).

Raises:
  UserError: for another name, and for inputs, which are in global memory.)";
inline constexpr const char* kSetMemoryType = "set_memory, by nvFuser's name.";
inline constexpr const char* kSetAllocation =
    R"(Store a shared value over its present loop axes from `first_axis` on, whatever becomes of them afterwards.

Args:
  pad: elements between rows, which keep columns off one memory bank.

Raises:
  UserError: for a value in registers, and a negative pad.)";
inline constexpr const char* kCircularBuffer =
    R"(Keep several copies of a shared value with bulk axes, so that it is read from memory ahead.

Args:
  stages: how many copies; iterations of the loop that the value is inlined in use them in turn.
  prefetch: how many iterations ahead they are filled, below `stages`; stages - 1 by default.

Raises:
  UserError: for a value that is not shared, and numbers that do not fit.)";
inline constexpr const char* kCacheAfter =
    R"(Let all ops that read the value read a copy of it, with the value's loops, and return the copy's name.

Raises:
  UserError: where no op reads it; of an output use cache_before.)";
inline constexpr const char* kCacheBefore =
    R"(Make the value the copy of a new one, with its loops, and return that one's name.

Raises:
  UserError: for an input.)";
inline constexpr const char* kCacheFork =
    R"(Make an output that ops read the copy of a new value, which they read, and return that one's name.

Raises:
  UserError: for what is no output, or is read by no op.)";
inline constexpr const char* kRfactor =
    R"(Fold some loop axes of a reduction first, in a new reduction, and return its name; the others are folded then.

Args:
  axes: some of several folded axes, or the inner one of a split: then every run of indices is folded by itself.

Raises:
  UserError: for what is no reduction, axes that are not folded, all that are, and after other transforms.)";

inline constexpr const char* kIndexGraph =
    R"(Which axes of a scheduled fusion have the same index at run time. An axis is (value, node).

Kinds of groups: "exact" (equal by ops and equal transforms), "almost_exact" (also the same part reached by other
splits, all of which divide), "permissive" (also an axis along which a value repeats) and "loop" (one loop of a kernel).

Example:
  >>> import jax.numpy as jnp
  >>> import jax_fuser as jf
  >>> fusion = jf.ir.trace(lambda x: jnp.tanh(x) * 2, jnp.ones((6, 8)))
  >>> g = jf.ir.IndexGraph(jf.ir.Schedule(fusion))
  >>> g.are_mapped("exact", g.root("x", 1), g.root(fusion.outputs[0], 1))
  True)";
inline constexpr const char* kRoot =
    R"(Return an axis that the value is computed over: one of its own, or of what it folds.

Raises:
  UserError: for an axis that there is not.)";
inline constexpr const char* kLoop =
    R"(Return the axis that a loop of a value runs over; `position` counts from the outermost one, or back from -1.

Raises:
  UserError: for a loop that there is not.)";
inline constexpr const char* kAxes =
    "Return the extents of a value's axes by node: roots first, then in the order in which transforms make them.";
inline constexpr const char* kAreMapped =
    R"(Return whether two axes are in one group.

Raises:
  UserError: for another kind than exact, almost_exact, permissive and loop, and an axis that there is not.)";
inline constexpr const char* kGroups =
    R"(Return all groups of a kind, each a list of axes.

Raises:
  UserError: for another kind than exact, almost_exact, permissive and loop.)";

}  // namespace jf::python::schedule_docs
