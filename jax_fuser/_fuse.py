"""`fuse`: run the pointwise parts and reductions of a JAX function as generated kernels, and leave the rest to XLA.

A function is traced and evaluated with each of its regions bound as one call of a primitive: `_fused_primitive`.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, overload

import jax

from jax_fuser import _by_hand, _core, _statics
from jax_fuser._fused_primitive import jit_is_off, run, run_program
from jax_fuser._lowered import Lowered
from jax_fuser._static_sizes import check_sizes


class Fused:
    """A function whose pointwise parts and reductions run as generated kernels; `fuse` makes it.

    Call it like the function itself.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        name: str,
        schedule: _by_hand.Given | None = None,
        statics: _statics.Statics = _statics.NONE,
        min_elements: int = 0,
    ):
        functools.update_wrapper(self, f, updated=())  # attributes of a callable object would hide those of this one
        self.name = name

        @functools.wraps(f)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            _core.host_compiler_ahead()  # starting a process takes as long as tracing
            of_arrays, args, kwargs = statics.bound(f, args, kwargs)
            closed, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*args, **kwargs)
            leaves = jax.tree.leaves((args, kwargs))
            _check_sizes(name, leaves, schedule is not None)
            by_hand = None
            if schedule is not None:
                by_hand = _by_hand.scheduled(closed, name, schedule, _by_hand.has_nested(args, kwargs))
            if by_hand is None:
                results = run(closed, leaves, name, min_elements=min_elements, info=closed.jaxpr.debug_info)
            else:
                jaxpr, program = by_hand
                results = run_program(jaxpr, leaves, name, program)
            return jax.tree.unflatten(jax.tree.structure(shapes), results)

        evaluate.__name__ = name
        self._function = f
        self._statics = statics
        self._jitted = jax.jit(evaluate, static_argnums=statics.positions, static_argnames=statics.names)

    def __repr__(self) -> str:
        return f"<fused function {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if jit_is_off():
            return self._function(*args, **kwargs)
        try:
            return self._jitted(*args, **kwargs)
        except TypeError:
            self.check(args, kwargs)
            raise

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for arguments of these shapes (arrays or `jax.ShapeDtypeStruct`); `Lowered` shows what came of it."""
        return Lowered(self.traced(*args, **kwargs))

    def traced(self, *args: Any, **kwargs: Any) -> Any:
        """Trace as `jax.jit(f).trace` does, for arrays or `jax.ShapeDtypeStruct`."""
        self.check(args, kwargs)
        return self._jitted.trace(*args, **kwargs)

    def check(self, args: Any, kwargs: Any) -> None:
        """Raise where an argument is no array."""
        self._statics.check(self.name, args, kwargs)


Names: TypeAlias = "str | Iterable[str]"


@overload
def fuse(
    f: Callable[..., Any],
    *,
    name: str | None = None,
    schedule: _by_hand.Given | None = None,
    static_argnums: int | Iterable[int] = (),
    static_argnames: Names = (),
) -> Fused: ...
@overload
def fuse(
    f: None = None,
    *,
    name: str | None = None,
    schedule: _by_hand.Given | None = None,
    static_argnums: int | Iterable[int] = (),
    static_argnames: Names = (),
) -> Callable[[Callable[..., Any]], Fused]: ...
def fuse(
    f: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    schedule: _by_hand.Given | None = None,
    static_argnums: int | Iterable[int] = (),
    static_argnames: Names = (),
) -> Any:
    """Run the pointwise parts and reductions of a function as generated kernels, with few passes over memory.

    Arithmetic, comparisons, casts, selects, broadcasts, transposes and reductions (sum, mean, max, argmax, any,
    softmax, layer norm), scans along an axis (cumsum) and top_k on floats (f64, f32, bf16, f16), integers and booleans
    fuse (8-bit floats, e4m3fn and e5m2, are cast and moved), across calls of `jax.jit` and of `jax.nn`, and so do
    slices, concatenations, padding, reshapes and gathers (`x[i]`) between them, updates at one place (`x.at[i].set`,
    `dynamic_update_slice`), and the bits that `jax.random` draws with threefry keys (the same bits): dropout is in the
    kernels. In functions of NestedTensors the search for each row's group, the reading of per-group operands and folds
    of the rows of each group fuse, too. Matrix products, scatters to several places and complex numbers stay with XLA
    between the regions; `explain` names them. So does control flow, whose bodies (`lax.scan`, `while_loop`, `cond`,
    `jax.checkpoint`, `shard_map`) have regions of their own. A `lax.scan` of elementwise steps whose carries are linear
    recurrences, `h = a * h + b` with a and b of the step or of other carries (moving averages, returns, advantages,
    gated linear layers, `where` that resets one), is part of a kernel, and so is its derivative, where its results for
    every step are kept. `jax.lax.ragged_dot` (and `ragged_dot_general`) becomes
    `jax_fuser.ragged_dot`, which batches with any `in_axes`. A grouped matmul of bf16, f16 or f32 that only one
    region reads is part of it; on the CPU, and of bf16 and f16 on GPUs of compute capability 9.0, what follows is part
    of its kernel. In bf16 and f16 a region computes in f32 and rounds what it stores, so it is at least as exact as the
    function by itself.

    Args:
      f: a function of arrays and pytrees of arrays, NestedTensors among them, as for `jax.jit`. Arrays that it closes
        over become inputs.
      name: the name of the kernels; the function's by default.
      schedule: how to compute `f`, which then must be one fusion and is one kernel: a function that edits a
        `jax_fuser.ir.Scheduler` or returns a `jax_fuser.ir.Schedule`, called for each combination of shapes; or a
        Schedule (or its text) of the fusion that `jax_fuser.ir.trace` makes of `f` for these shapes. Results without
        elements need none. The compiler
        plans derivatives, batches (`vmap`) and the parts of a mesh by itself: they are other fusions.
      static_argnums, static_argnames: arguments that are no arrays, as for `jax.jit`: hashable values, for each of
        which the function is compiled anew.

    Returns:
      A function with the same arguments and results, compiled for each combination of shapes and dtypes as by
      `jax.jit`. It works under every JAX transform and differentiates as `f` does, to any order; on a mesh each device
      runs its part. Where no C++ compiler (CPU) or NVRTC (CUDA) is found it runs as plain XLA ops, with one
      RuntimeWarning. `.lower(*args)` shows every stage as text. `checkify`'s own checks (NaN, division, indices) see no
      op inside; those of `checkify.check` stay.

    Raises:
      TypeError: if `f` is not callable, or is called with something that is neither an array nor static.
      UserError: with `schedule`, if `f` is not one fusion (a part stays with XLA, it closes over an array, a result is
        an argument), or the schedule is for another function, for other shapes, or cannot be lowered.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> @jf.fuse
      ... def gate(x, y):
      ...     return x * jnp.tanh(y) + 1
      >>> gate(jnp.ones(4), jnp.zeros(4))
      Array([1., 1., 1., 1.], dtype=float32)

    A schedule of one's own:
      >>> def two_at_a_time(s):
      ...     out = s.fusion.outputs[0]
      ...     s.split(out, 0, 2)
      ...     s.parallelize(out, -1, "vector")
      ...     s.transform_like(out)
      ...     s.parallelize_like(out)
      ...     s.inline_most()
      >>> by_hand = jf.fuse(lambda x, y: x * jnp.tanh(y) + 1, schedule=two_at_a_time)
      >>> by_hand(jnp.ones(4), jnp.zeros(4))
      Array([1., 1., 1., 1.], dtype=float32)
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"fuse: name must be a string, got {type(name).__name__}")
    if schedule is not None:
        _by_hand.check(schedule)
    if f is None:
        options = {"static_argnums": static_argnums, "static_argnames": static_argnames}
        return functools.partial(fuse, name=name, schedule=schedule, **options)
    if not callable(f):
        raise TypeError(f"fuse: expected a function, got {type(f).__name__}; write jf.fuse(f)(x), not jf.fuse(f(x))")
    if inspect.iscoroutinefunction(f) or inspect.isgeneratorfunction(f):
        raise TypeError("fuse: expected a function that returns arrays, got a generator or coroutine")
    inner = f.func if isinstance(f, functools.partial) else f
    own_name: str = getattr(inner, "__name__", type(inner).__name__)
    statics = _statics.of(f, static_argnums, static_argnames)
    return Fused(f, own_name if name is None else name, schedule, statics)


def _check_sizes(name: str, leaves: Sequence[Any], must_fuse: bool) -> None:
    """Say what becomes of symbolic sizes: kernels are compiled for numbers, and XLA takes the rest."""
    try:
        for i, leaf in enumerate(leaves):
            check_sizes(f"fuse: {name}", **{f"argument {i}": leaf})
    except _core.UserError as error:
        if must_fuse:
            raise
        warnings.warn(f"{error}; now what has such a size runs as plain XLA ops", RuntimeWarning, stacklevel=2)
