"""The compiler seen from Python: write a fusion, schedule it by hand, ask which axes share an index, run it.

A `Fusion` says what is computed, a `Schedule` says how; both print, parse and compare, and a schedule can change the
speed of a fusion, never its result. Values go by their names.

Example:
  >>> import jax.numpy as jnp
  >>> import jax_fuser as jf
  >>> fusion = jf.ir.trace(lambda x, b: jnp.tanh(x + b), jnp.ones((6, 8)), jnp.ones(8), name="act")
  >>> scheduler = jf.ir.Scheduler(fusion)
  >>> out = fusion.outputs[0]
  >>> scheduler.merge(out, 0)
  >>> scheduler.split(out, 0, 16)
  >>> scheduler.parallelize(out, -1, "vector")
  >>> scheduler.transform_like(out)
  >>> scheduler.parallelize_like(out)
  >>> scheduler.inline_most()
  >>> scheduler.loops(out)
  [(3, 'serial'), (16, 'vector')]
  >>> [y] = jf.ir.run(scheduler.schedule, jnp.ones((6, 8)), jnp.ones(8))
  >>> y.shape
  (6, 8)

nvFuser's scheduling calls, and what they are here: values go by name, and a call that makes a value returns its name.

| `fd.sched` | here | what differs |
|---|---|---|
| `split`, `merge`, `reorder` | the same | `inner_split` is `inner`; the order lists old axes |
| `parallelize` | the same | names: `grid_x` is "block", `block_x` "thread", `vectorize` "vector"; CPU has "task" |
| `rfactor`, `reduction_factor` | `rfactor` | before other transforms; parts are runs of consecutive indices |
| `cache_after`, `cache_before`, `cache_fork` | the same | no `op_type`, `cache_op`: the compiler chooses them |
| `set_memory_type` | `set_memory`, or the same | "register" or "shared"; inputs and outputs are in global memory |
| `set_allocation_as_loop` | `set_allocation` | of shared values, with a pad; JAX lays out global memory |
| TMA, circular buffers (C++ only) | `parallelize(.., "bulk")`, `circular_buffer` | see below |
| `transform_like`, `parallelize_like` | the same | `selected`, `position`, `types`; padding is a transform, `pad` |
| `inline_at`, `inline_most` | the same | `inline_at` is for one value; `best_effort` lessens its position |
| `tensors`, `is_reduction` | `Fusion.values`, `is_reduction` | what is computed, not how |
| `to_string`, `user_schedule_ir` | `str(s)`, `str(s.fusion)` | both parse back |
| `can_schedule`, `find_compatible_schedulers` | the same | functions of a fusion and a platform |
| `compute_pointwise_heuristics` | `compute_heuristics` | one function of a strategy; parameters are a dict |
| `compute_reduction_heuristics` | `compute_heuristics` | the same |
| `compute_matmul_heuristics` | none | grouped products are written by hand; `fuse` leaves dense ones to XLA |
| `schedule_hyperparameters` | `compute_heuristics` | `lanes`, `unroll`, `threads` among the parameters |
| `schedule` | `schedule` | returns a schedule to go on from; without a strategy, `propose` |
| `_set_device_mesh` | none | meshes are JAX's: `jax.shard_map` around `run` |
| `execute` | `run`, `evaluate` | with the kernel, or op by op in `jax.numpy` |

One kernel. `Scheduler(fusion)`, and the strategies, have the fusion as one kernel makes it: the parts of a concatenated
result are outputs, each at its place, and axes are cut so that reshapes are gone; `s.fusion` says how. Inputs and
results are in the same memory then, maybe of another shape, which `run` takes; `fuse` takes them as they were.

Example:
  >>> x = jnp.ones((3, 4))
  >>> scheduler = jf.ir.Scheduler(jf.ir.trace(lambda x: jnp.concatenate([x * 2, x + 1]), x, name="both"))
  >>> scheduler.fusion.outputs, [y.shape for y in jf.ir.run(scheduler.schedule, x)]
  (['t7', 't8'], [(6, 4)])

Bulk copies (Hopper's TMA). Where the innermost axes of a shared copy of an input are "bulk", one instruction copies all
their elements: a run of consecutive ones, or a box of the array, whose order in shared memory may be swizzled as the
hardware does it. Threads wait only before they read. With stages, the copies for the next iterations of the loop that
the copy is inlined in are already on their way. An output that is a copy of a shared value can have bulk axes, too.

Clusters. Up to 8 blocks along a "cluster" axis fold it together, so that a long row is kept by several of them.

Example:
  >>> fusion = jf.ir.trace(jnp.tanh, jnp.ones((64, 256)), name="rows")
  >>> scheduler = jf.ir.Scheduler(fusion)
  >>> copy, [out] = scheduler.cache_after("x"), scheduler.fusion.outputs
  >>> scheduler.split(out, 0, 8)
  >>> scheduler.transform_like(out)
  >>> for value, axis, parallel in [(out, 0, "block"), (out, 2, "thread"), (copy, 0, "block"), (copy, 2, "bulk")]:
  ...     scheduler.parallelize(value, axis, parallel)
  >>> scheduler.set_memory(copy, "shared")
  >>> scheduler.circular_buffer(copy, stages=3)
  >>> scheduler.inline_most()
  >>> print(scheduler)
  schedule {
    x_cache[64,256]: split(0,8) -> [8 block, 8, 256 bulk] inline 2 shared circular 3 prefetch 2
    t1[64,256]: split(0,8) -> [8 block, 8, 256 thread]
  }
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend
from jax.interpreters import ad, batching, mlir

from jax_fuser import _arguments, _binding_words, _by_hand, _core, _evaluate, _ffi, _fused_primitive
from jax_fuser._core import Fusion, IndexGraph, Schedule, Scheduler, UserError
from jax_fuser._evaluate import evaluate

__all__ = [
    "Builder",
    "Fusion",
    "IndexGraph",
    "Lowered",
    "Schedule",
    "Scheduler",
    "can_schedule",
    "compute_heuristics",
    "evaluate",
    "find_compatible_schedulers",
    "lower",
    "ops",
    "propose",
    "run",
    "schedule",
    "trace",
]

# A strategy's parameters by name.
Parameters = dict[str, bool | int | str | list[int]]


class Builder(_core.Builder):
    """Build a fusion op by op; values are numbers until it is finished. `jax_fuser.ir.ops` lists the ops by name.

    Every method raises UserError for a value that there is not, a dtype that an op does not take, and an op beyond
    `max_ops` (65536), and then adds nothing. An equal op is added once.

    Example:
      >>> import jax_fuser as jf
      >>> b = jf.ir.Builder("double")
      >>> x = b.input("x", "f32", [8])
      >>> b.output(b.pointwise("add", [x, x]))
      >>> b.finish().outputs
      ['t1']

    Nested values. `partition` makes one axis of an array two: the component, and the ragged axis of its rows, of which
    component g has extents[g], from row starts[g] on; both are s32 values that are read on the device. Pointwise ops on
    nested values need equal extents, `broadcast_like` gives a dense value the axes of a nested one, a reduction of the
    ragged axis leaves a value for each component (0 for a sum of no rows), and `combine` puts the rows of all
    components into one array, zeros between them. `most` is the largest number of rows that a component can have:
    extents are brought into [0, most], starts into the array, and a row behind its end is the last one. Extents with
    several axes stand for outer axes of the array too, or, with `components=n` (also of `combine`), their last n axes
    are the component.

    A value can have several ragged axes: `partition` again, along an axis that is neither ragged nor a component, or
    `stretch` one value's rows along those of another (all pairs of rows of a component, as attention has them). Each
    is folded by itself, `broadcast_like` gives the result the axes back, and `combine` takes starts and rows for each
    of them, `b.combine(x, [starts, others], [rows, columns])`. They take the views below: padding, concatenation and
    reshapes of dense axes, slices of all, `split` and `merge` of one ragged axis beside others, and `select` of a
    component that all ragged axes share. Rows that a thread cannot keep for the next fold of theirs (more than 256 KiB)
    are computed again.

    Views of nested values: `transpose` and `broadcast` of any axes; `slice` of any, a run of rows is what each
    component has of it; `pad`, `concat` and `reshape` of dense axes; `select`, the rows of one component as an array,
    with zeros behind the last one. They compute what is asked for from the array, and move nothing. `split` and `merge`
    move rows, and return (value, starts, extents): runs of `factor` rows as an axis of their own, the last ones filled
    up with zeros; a ragged axis with the dense axis behind it, with the last outer axis of its extents (which are
    summed), or with its component (an array). `jax_fuser.nested` has the same for whole tensors, also across devices,
    and rows after rows (`concat`). A fold of the component without its rows, ragged axes of ragged axes (nesting
    of several levels), and operands with two values of extents are refused.

    Example:
      >>> import jax.numpy as jnp
      >>> b = jf.ir.Builder("totals")
      >>> x, starts, sizes = b.input("x", "f32", [6, 2]), b.input("starts", "s32", [3]), b.input("sizes", "s32", [3])
      >>> rows = b.partition(x, starts, sizes, axis=0, most=6)
      >>> b.output(b.reduce("reduce_sum", rows, [1]))
      >>> print(fusion := b.finish())
      fusion totals(x: f32[6,2], starts: s32[3], sizes: s32[3]) -> (t4) {
        t3: f32[3,ragged 6 of sizes by 0,2] = partition(x, starts, sizes) {most=6, axis=0}
        t4: f32[3,2] = reduce_sum(t3) {dims=[1]}
      }
      <BLANKLINE>
      >>> [sums] = jf.ir.run(fusion, jnp.ones((6, 2)), jnp.array([0, 3, 3]), jnp.array([3, 0, 2]))
      >>> sums.tolist()
      [[3.0, 3.0], [0.0, 0.0], [2.0, 2.0]]
    """

    def finish(self) -> Fusion:
        """Return the fusion, without ops that reach no output; the builder takes no calls afterwards."""
        return Fusion(super().finish())


for _own, _base in [(c, c) for c in (Fusion, Schedule, Scheduler, IndexGraph)] + [(Builder, _core.Builder)]:
    _binding_words.name_arguments(_own, _base)

# What prints and parses back is copied and pickled as its text.
copyreg.pickle(Fusion, lambda f: (Fusion, (str(f),)))
copyreg.pickle(Schedule, lambda s: (Schedule, (s.fusion, str(s))))
copyreg.pickle(Scheduler, lambda s: (Scheduler, (s.schedule,)))


def ops(method: str = "pointwise") -> dict[str, str]:
    """Return the ops that a method of `Builder` takes by name, each with the dtypes of its operands and its result.

    "number" is any integer or float, "logical" an integer or pred, "any" every dtype; the operands of an op have one
    dtype, which is that of its result, unless one is "pred". `convert` and `bitcast` are methods of their own.

    Args:
      method: "pointwise", "reduce" or "scan".

    Raises:
      ValueError: for another method.

    Example:
      >>> import jax_fuser as jf
      >>> jf.ir.ops()["select"]
      '(pred, any, any) -> any'
      >>> [*jf.ir.ops("reduce")][:3]
      ['reduce_sum', 'reduce_prod', 'reduce_max']
    """
    methods = ("pointwise", "reduce", "scan")
    if method not in methods:
        raise ValueError(f"ops: method must be one of {', '.join(methods)}, got {method!r}")
    return {name: f"({', '.join(x)}) -> {result}" for name, of, x, result in _core.ops() if of == method}


def trace(f: Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any) -> Fusion:
    """Return a JAX function as one fusion.

    Inputs have the names of arguments, params_w1 for params['w1'] (x0, x1, .. where there are none), and results those
    of their paths, where these are words: out for {"out": ..}. Other values are numbered: t2.

    Args:
      f: a function of arrays whose every op has one of its own in the fusion IR.
      args, kwargs: arrays or `jax.ShapeDtypeStruct`s, and pytrees of them.
      name: the fusion's name; the function's by default.

    Raises:
      UserError: for an op that `jf.fuse` would leave to XLA, for an array that `f` closes over, and where a result is
        an argument or another result.
    """
    _arguments.function("trace", "f", f)
    name = getattr(f, "__name__", type(f).__name__) if name is None else _arguments.text("trace", "name", name)
    nested = _by_hand.has_nested(args, kwargs)
    _, program = _by_hand.one_fusion(jax.make_jaxpr(f)(*args, **kwargs), name, "trace", nested)
    return Fusion(program.text)


class Lowered:
    """The stages of a fusion on one platform, as text. `lower` makes it."""

    def __init__(self, text: str, target: str):
        self._text, self._target = text, target
        self._stages: dict[str, str] = _core.stages(text, target)

    def __repr__(self) -> str:
        return f"<lowered for {self._target}; as_text(stage) shows {', '.join(sorted(self._stages))}, sass>"

    def as_text(self, stage: str) -> str:
        """Return one stage: "fusion", "segments", "schedule", "loops", "source" (C++ or CUDA C++), "host" or "sass"
        (the instructions on CUDA, which needs NVRTC and nvdisasm but no device).
        """
        if stage == "sass":
            text: str = _core.sass(self._text, self._target)
            return text
        if stage not in self._stages:
            raise ValueError(f"as_text: stage must be one of {', '.join(sorted(self._stages))}, sass, got {stage!r}")
        return self._stages[stage]


def lower(program: Fusion | Schedule, platform: str | None = None) -> Lowered:
    """Lower a fusion with the compiler's own schedules, or a schedule exactly as it is, to one kernel.

    Args:
      program: what to compute, or how.
      platform: "cpu" or "cuda"; the default device's if None. CUDA text needs no CUDA device.

    Raises:
      UserError: where the schedule cannot be lowered; it names the value and the call that mends it.
    """
    return Lowered(_text(program), _target(platform, "lower"))


def propose(fusion: Fusion, platform: str | None = None) -> list[Schedule]:
    """Return what the compiler would do by itself: one schedule for each generated kernel, in the order they run.

    Each is over the fusion of its own segment, `schedule.fusion`; `Scheduler(schedule)` goes on from there. A single
    one has the inputs and outputs in their order, parts as `Scheduler` has them; those of several may have them in
    another one, and `place` says which part of a result they store.

    Args:
      fusion: what to compute.
      platform: "cpu" or "cuda"; the default device's if None.
    """
    _check_fusion(fusion, "propose")
    schedules: list[Schedule] = _core.propose(fusion, _target(platform, "propose"))
    return schedules


def can_schedule(fusion: Fusion, strategy: str, platform: str | None = None) -> tuple[bool, str]:
    """Return whether a strategy can make the whole fusion as one kernel, and if not, why not.

    Args:
      fusion: what to compute.
      strategy: "pointwise", "transpose" (inputs read across go through shared memory, CUDA only) or "reduction".
      platform: "cpu" or "cuda"; the default device's if None.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> fusion = jf.ir.trace(lambda x: x.sum(axis=1), jnp.ones((6, 8)), name="sums")
      >>> jf.ir.can_schedule(fusion, "reduction", "cpu")
      (True, '')
      >>> jf.ir.can_schedule(fusion, "pointwise", "cpu")
      (False, '[pointwise] t1 folds axes; use reduction')
    """
    _check_fusion(fusion, "can_schedule")
    reason: str = _core.why_not(fusion, _strategy(strategy, "can_schedule"), _target(platform, "can_schedule"))
    return not reason, reason


def find_compatible_schedulers(fusion: Fusion, platform: str | None = None) -> list[str]:
    """Return the strategies that can make the whole fusion as one kernel, the compiler's first choice first.

    Args:
      fusion: what to compute.
      platform: "cpu" or "cuda"; the default device's if None.
    """
    _check_fusion(fusion, "find_compatible_schedulers")
    target = _target(platform, "find_compatible_schedulers")
    return [strategy for strategy in _core.strategies() if not _core.why_not(fusion, strategy, target)]


def compute_heuristics(fusion: Fusion, strategy: str, platform: str | None = None) -> Parameters:
    """Return the parameters that a strategy would schedule the whole fusion with, to edit and pass to `schedule`.

    Loops are runs of neighbouring axes of the iteration domain that every array goes along in one piece, numbered from
    the outermost; "pointwise" lists its own in `collapse`. Counts are positive, `lanes` a power of two up to 64.

    - "pointwise" on the CPU: `collapse`, how many axes make each loop; `lane_loop`, the loop that runs in vectors of
      `lanes` elements; `tile_loop`, along which an input is contiguous that is not so along lane_loop (-1: none), of
      which `tile` iterations share cache lines; `along_rows`, whether such tiles follow each other along tile_loop;
      `vectors`, tiles beside each other along lane_loop; `tasks`, calls that other threads may take.
    - "pointwise" on CUDA: `collapse`; `lanes`, elements of a vector access, along the last loop; `two_axes`, threads
      only along the last loop, so that a block reads what repeats along the others once; `threads` of a block;
      `unroll`, vectors of a thread.
    - "transpose" (CUDA): `loop`, along which the transposed inputs are contiguous; `tile`, iterations of it and of the
      last loop in a tile of shared memory; `lanes`; `threads` of a block.
    - "reduction" on the CPU: `lane_loop`, `lanes`; `chunk`, registers side by side where lane_loop is kept; `rows` side
      by side where others fold across them; `keep`, what stays from one pass over a row to the next: "nothing", "dear"
      (what takes many instructions) or "rows"; `tasks`.
    - "reduction" on CUDA: `along`, what the threads x of a block go along: one "row" that is folded, "rows", "columns"
      of which each is folded, or "runs" of a row, which are folded by themselves, too (`lane_loop` is then theirs);
      `lane_loop`, `lanes`; `threads` along x; `threads_y`, rows of a block, parts of each column, or runs; `unroll`,
      vectors of a thread along what is folded, or its runs; `keep`; `keep_columns`, inputs that are the same for every
      row stay in registers; `keep_wide`, what inputs are converted to does; `at_once`, blocks for whose registers a
      multiprocessor has room (1: the compiler decides). On compute capability 9.0 `stages`: where above 1, rows come by
      bulk copies to so many stages of shared memory, for `blocks` blocks; `bulk_store`, results go out so, too;
      `cluster`, blocks that share a row.

    Args:
      fusion: what to compute.
      strategy: "pointwise", "transpose" or "reduction".
      platform: "cpu" or "cuda"; the default device's if None. Each has parameters of its own.

    Raises:
      UserError: where the strategy cannot make the fusion as one kernel, as `can_schedule` says.
    """
    _check_fusion(fusion, "compute_heuristics")
    name, target = _strategy(strategy, "compute_heuristics"), _target(platform, "compute_heuristics")
    parameters: Parameters = _core.parameters_of(fusion, name, target)
    return parameters


def schedule(
    fusion: Fusion, strategy: str, platform: str | None = None, parameters: Parameters | None = None
) -> Schedule:
    """Return a strategy's schedule of the whole fusion as one kernel.

    `schedule.fusion` has the inputs and outputs of the fusion in their order; a strategy may add copies of values.

    Args:
      fusion: what to compute.
      strategy: "pointwise", "transpose" or "reduction".
      platform: "cpu" or "cuda"; the default device's if None.
      parameters: those to use instead of the ones that `compute_heuristics` gives; others stay as it gives them.

    Raises:
      TypeError: for a parameter that is no bool, int, str or list of int.
      UserError: where the strategy cannot make the fusion as one kernel, or not with these parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> fusion = jf.ir.trace(lambda x: x * 2, jnp.ones((6, 8)), name="twice")
      >>> parameters = jf.ir.compute_heuristics(fusion, "pointwise", "cpu")
      >>> parameters["lanes"] = 4
      >>> jf.ir.schedule(fusion, "pointwise", "cpu", parameters).loops(fusion.outputs[0])
      [(12, 'serial'), (4, 'vector')]
    """
    _check_fusion(fusion, "schedule")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise TypeError(f"schedule: parameters must be a dict as of compute_heuristics, got {parameters!r}")
    given = dict(parameters or {})
    for name, value in given.items():
        if not isinstance(name, str):
            raise TypeError(f"schedule: parameters go by name, a string, got {name!r}")
        items = list(value) if isinstance(value, list | tuple) else [value]
        one = isinstance(value, bool | int | str)
        if not one and not (isinstance(value, list | tuple) and all(type(item) is int for item in items)):
            raise TypeError(f"schedule: parameter {name} must be a bool, int, str or list of int, got {value!r}")
        if any(type(item) is int and abs(item) >= 2**31 for item in items):
            raise ValueError(f"schedule: parameter {name} is out of range, got {value!r}")
    target = _target(platform, "schedule")
    made: Schedule = _core.schedule_by(fusion, _strategy(strategy, "schedule"), target, given)
    return made


def run(program: Fusion | Schedule, *arrays: Any) -> list[jax.Array]:
    """Run a fusion with the compiler's own schedules, or a schedule exactly as it is, as one kernel.

    Works under every JAX transform and differentiates as `evaluate` does. Derivatives, batches (`vmap`) and the parts
    of a mesh are other fusions, which the compiler plans as for `jf.fuse`. Where nothing can be compiled it runs as
    plain XLA ops, as fused functions do.

    Args:
      program: what to compute, or how.
      arrays: as `evaluate` takes them; it raises the same for others.

    Returns:
      One array for each of fusion.outputs.

    Raises:
      UserError: where the schedule cannot be lowered; it names the value and the call that mends it.
      NotImplementedError: for a derivative or a batch of what `evaluate` has no rule for.
    """
    fusion = _fusion(program, "run")
    operands = _evaluate.checked_operands("run", fusion, arrays)
    return list(_compiled(_text(program), fusion)(*operands))


def _target(platform: str | None, function: str) -> str:
    if platform is None:
        platform = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if not isinstance(platform, str) or platform not in ("cpu", "cuda"):
        raise ValueError(f"{function}: platform must be 'cpu' or 'cuda', got {platform!r}")
    return _ffi.target_text(platform)


def _strategy(strategy: str, function: str) -> str:
    known: list[str] = _core.strategies()
    if not isinstance(strategy, str) or strategy not in known:
        raise ValueError(f"{function}: strategy must be one of {', '.join(known)}, got {strategy!r}")
    return strategy


def _check_fusion(fusion: Any, function: str) -> None:
    if not isinstance(fusion, Fusion):
        hint = "; pass its fusion" if isinstance(fusion, (Schedule, Scheduler)) else "; make one with trace or Builder"
        raise TypeError(f"{function}: expected a Fusion, got {type(fusion).__name__}{hint}")


def _fusion(program: Fusion | Schedule, function: str) -> Fusion:
    if isinstance(program, Fusion):
        return program
    if isinstance(program, Schedule):
        return program.fusion
    hint = "; pass its schedule" if isinstance(program, Scheduler) else "; make one with trace or Builder"
    raise TypeError(f"{function}: expected a Fusion or a Schedule, got {type(program).__name__}{hint}")


def _text(program: Fusion | Schedule) -> str:
    fusion = _fusion(program, "lower")
    return str(fusion) if program is fusion else f"{fusion}{program}"


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, fusion: Fusion) -> Callable[..., Any]:
    """Return what runs a program's text, which computes `fusion`."""

    def run_once(*operands: Any) -> list[Any]:
        try:
            closed = jax.make_jaxpr(functools.partial(evaluate, fusion))(*operands)
        except UserError as error:
            arrays = _core.results(fusion)
            shapes = tuple(_ffi.array_type(fusion.dtype(parts[0]), shape) for parts, shape, _ in arrays)
            made: list[Any] = opaque_p.bind(*operands, text=text, shapes=shapes, reason=str(error))
            return made
        return _fused_primitive.run_program(closed, operands, fusion.name, text)

    return jax.jit(run_once)


# A program with an op that `evaluate` does not have: it runs, but there is nothing to differentiate.

opaque_p = jax.extend.core.Primitive("jax_fuser_ir")
opaque_p.multiple_results = True
opaque_p.def_abstract_eval(lambda *_, text, shapes, reason: [jax.core.ShapedArray(*shape) for shape in shapes])


def _lower_opaque(ctx: Any, *operands: Any, text: str, platform: str, **_: Any) -> Sequence[Any]:
    return _ffi.emit_program(ctx, operands, text, platform=platform)


def _refuse(*_: Any, reason: str, **__: Any) -> Any:
    raise NotImplementedError(
        f"run: this fusion has no derivative and no batch; {reason}. For those use jf.fuse(f, schedule=...)"
    )


ad.primitive_jvps[opaque_p] = _refuse
batching.primitive_batchers[opaque_p] = _refuse
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(opaque_p, functools.partial(_lower_opaque, platform=_platform), platform=_platform)
