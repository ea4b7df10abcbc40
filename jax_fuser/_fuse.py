"""`fuse`: run the pointwise parts and reductions of a JAX function as generated kernels, and leave the rest to XLA.

A function is traced, cut into regions (`_regions`), and evaluated with each region bound as one call of the primitive
`fused_p`. The primitive's rules trace the derivative, transpose or batch of a region's jaxpr and cut that into regions
again, so every transform nests, and what it brings (the sum of a broadcast's cotangent, say) is fused like all else. A
region's derivative takes the region's inputs: nothing else is kept for the backward pass, its kernel
computes the rest again.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, overload

import jax
import jax.extend
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, Var, new_jaxpr_eqn
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from jax_fuser import _bodies, _by_hand, _core, _explain, _ffi, _flatten, _random, _regions, _split, _statics, _trace
from jax_fuser._static_sizes import check_sizes

fused_p = jax.extend.core.Primitive(_trace.FUSED)
fused_p.multiple_results = True


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
    ):
        functools.update_wrapper(self, f)
        self.name = name

        @functools.wraps(f)
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            _core.host_compiler_ahead()  # starting a process takes as long as tracing
            of_arrays, args, kwargs = statics.bound(f, args, kwargs)
            closed, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*args, **kwargs)
            leaves = jax.tree.leaves((args, kwargs))
            _check_sizes(name, leaves, schedule is not None)
            if schedule is None:
                results = run(closed, leaves, name)
            else:
                jaxpr, program = _by_hand.scheduled(closed, name, schedule)
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

    def lower(self, *args: Any, **kwargs: Any) -> _explain.Lowered:
        """Trace for arguments of these shapes (arrays or `jax.ShapeDtypeStruct`); `Lowered` shows what came of it."""
        return _explain.Lowered(self.traced(*args, **kwargs))

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
    `jax.checkpoint`, `shard_map`) have regions of their own. `jax.lax.ragged_dot` (and `ragged_dot_general`) becomes
    `jax_fuser.ragged_dot`, which batches with any `in_axes`. A grouped matmul of bf16 or f16 that only one region reads
    is part of it; on GPUs of compute capability 9.0 and on the CPU what follows is part of its kernel. In bf16 and f16
    a region computes in f32 and rounds what it stores, so it is at least as exact as the function by itself.

    Args:
      f: a function of arrays and pytrees of arrays, NestedTensors among them, as for `jax.jit`. Arrays that it closes
        over become inputs.
      name: the name of the kernels; the function's by default.
      schedule: how to compute `f`, which then must be one fusion and is one kernel: a function that edits a
        `jax_fuser.ir.Scheduler` or returns a `jax_fuser.ir.Schedule`, called for each combination of shapes; or a
        Schedule (or its text) of the fusion that `jax_fuser.ir.trace` makes of `f` for these shapes. The compiler
        plans derivatives, batches (`vmap`) and the parts of a mesh by itself: they are other fusions.
      static_argnums, static_argnames: arguments that are no arrays, as for `jax.jit`: hashable values, for each of
        which the function is compiled anew.

    Returns:
      A function with the same arguments and results, compiled for each combination of shapes and dtypes as by
      `jax.jit`. It works under every JAX transform and differentiates as `f` does, to any order; on a mesh each device
      runs its part. Where no C++ compiler (CPU) or NVRTC (CUDA) is found it runs as plain XLA ops, with one
      RuntimeWarning. `.lower(*args)` shows every stage as text.

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


# Evaluation.


def _check_sizes(name: str, leaves: Sequence[Any], must_fuse: bool) -> None:
    """Say what becomes of symbolic sizes: kernels are compiled for numbers, and XLA takes the rest."""
    try:
        for i, leaf in enumerate(leaves):
            check_sizes(f"fuse: {name}", **{f"argument {i}": leaf})
    except _core.UserError as error:
        if must_fuse:
            raise
        warnings.warn(f"{error}; now what has such a size runs as plain XLA ops", RuntimeWarning, stacklevel=2)


def run(closed: Any, args: Sequence[Any], name: str, linear: Iterable[int] = ()) -> list[Any]:
    """Evaluate a closed jaxpr with its regions fused; it is linear in the arguments numbered `linear`."""
    flat = _flatten.flatten(closed)
    arguments = flat.invars[len(flat.consts) :]
    jaxpr = fused_jaxpr(flat, name, [arguments[i] for i in linear])
    return jax.core.eval_jaxpr(jaxpr, (), *flat.consts, *args)


def run_program(jaxpr: Any, args: Sequence[Any], name: str, program: str) -> list[Any]:
    """Run a flat closed jaxpr as exactly this program, whose inputs and outputs are those of the jaxpr in order."""
    linear = (False,) * len(args)
    results: list[Any] = fused_p.bind(
        *args, jaxpr=jaxpr, name=name, linear=linear, mesh=_split.needs_devices(), program=program
    )
    return results


def fused_jaxpr(
    flat: _flatten.Flat, name: str, linear: Sequence[Var], leave_draws: bool = False, leave_products: bool = False
) -> Jaxpr:
    """Return the jaxpr in which each region is one equation of `fused_p`.

    `leave_draws`: no random bits in them; `leave_products`: no grouped products.
    """
    depends = _regions.dependent(flat.eqns, {*linear, *flat.linear})
    eqns = []
    for step in _regions.partition(flat, linear, leave_draws, leave_products):
        if isinstance(step, _regions.Region):
            params = {
                "jaxpr": ClosedJaxpr(_jaxpr(step.invars, step.outvars, step.eqns), ()),
                "name": name,
                "linear": tuple(v in depends for v in step.invars),
                "mesh": _split.needs_devices(),
            }
            last = step.eqns[-1]
            step = new_jaxpr_eqn(step.invars, step.outvars, fused_p, params, frozenset(), last.source_info, last.ctx)
        else:
            step = _bodies.fused(step, lambda body: fused_jaxpr(body, name, (), leave_draws, leave_products))
        eqns.append(step)
    return _jaxpr(flat.invars, flat.outvars, eqns)


def _jaxpr(invars: Any, outvars: Any, eqns: Any) -> Jaxpr:
    return Jaxpr((), invars, outvars, eqns, debug_info=DebugInfo("fuse", "fuse", None, None))


def jit_is_off() -> bool:
    config: Any = jax.config
    return config.jax_disable_jit


def _plain(*args: Any, jaxpr: Any, **_: Any) -> list[Any]:
    return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args)


@functools.lru_cache(maxsize=4096)
def _compiled(**params: Any) -> Callable[..., list[Any]]:
    return jax.jit(lambda *args: fused_p.bind(*args, **params))


def _impl(*args: Any, **params: Any) -> list[Any]:
    if jit_is_off():
        return _plain(*args, **params)
    return _compiled(**params)(*args)


def _abstract_eval(*_: Any, jaxpr: Any, **__: Any) -> list[Any]:
    # Traced in place: sharding and manual axes are those of this call.
    return list(jaxpr.out_avals)


# Transforms. Each traces the transformed jaxpr and runs it with regions of its own.


def _merged(size: int, *parts: tuple[Sequence[int], Sequence[Any]]) -> list[Any]:
    """Return `size` values, each part being (positions, values)."""
    merged: list[Any] = [None] * size
    for positions, values in parts:
        for i, value in zip(positions, values):
            merged[i] = value
    return merged


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    jaxpr, name = params["jaxpr"], params["name"]
    has_product = _trace.has_product(jaxpr.jaxpr) and "program" not in params
    results = [] if has_product else fused_p.bind(*primals, **params)
    zeros: list[Any] = [ad.Zero(aval.to_tangent_aval()) for aval in jaxpr.out_avals]
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    reached = _regions.dependent(jaxpr.jaxpr.eqns, {jaxpr.jaxpr.invars[i] for i in moving})
    outvars = enumerate(jaxpr.jaxpr.outvars)
    changing = [k for k, v in outvars if v in reached and zeros[k].aval.dtype != jax.dtypes.float0]
    if not changing:
        return fused_p.bind(*primals, **params) if has_product else results, zeros
    rest = [i for i in range(len(primals)) if i not in moving]

    def tangents_out(*args: Any) -> Any:
        fixed = [args[i] for i in rest]

        def f(*moved: Any) -> list[Any]:
            out = _plain(*_merged(len(primals), (rest, fixed), (moving, moved)), jaxpr=jaxpr)
            return [out[k] for k in (range(len(zeros)) if has_product else changing)]

        results, out = jax.jvp(f, tuple(args[i] for i in moving), args[len(primals) :])
        # A product is computed once, for the results and for their tangents.
        return [*results, *(out[k] for k in changing)] if has_product else out

    args = (*primals, *(tangents[i] for i in moving))
    out = run(jax.make_jaxpr(tangents_out)(*args), args, f"{name}_jvp", range(len(primals), len(args)))
    if has_product:
        results, out = out[: len(zeros)], out[len(zeros) :]
    return results, _merged(len(zeros), (range(len(zeros)), zeros), (changing, out))


def _transpose(cotangents: Any, *args: Any, jaxpr: Any, name: str, **_: Any) -> list[Any]:
    invars, outvars = jaxpr.jaxpr.invars, jaxpr.jaxpr.outvars
    unknown = [i for i, a in enumerate(args) if ad.is_undefined_primal(a)]
    known = [i for i in range(len(args)) if i not in unknown]
    given = [k for k, ct in enumerate(cotangents) if type(ct) is not ad.Zero]
    live = _regions.live(jaxpr.jaxpr.eqns, [outvars[k] for k in given])
    needed = {v for eqn in live for v in _regions.variables(eqn)}
    wanted = [i for i in unknown if invars[i] in needed]
    zeros = [ad.Zero(args[i].aval.to_ct_aval()) for i in unknown]
    if not wanted:
        return _merged(len(args), (unknown, zeros))

    def cotangents_in(*values: Any) -> Any:
        points = [ad.instantiate_zeros(ad.Zero(args[i].aval)) for i in unknown]

        def f(*moved: Any) -> list[Any]:
            merged = _merged(len(args), (known, values), (unknown, points), (wanted, moved))
            out = _plain(*merged, jaxpr=jaxpr)
            return [out[k] for k in given]

        return jax.vjp(f, *(points[unknown.index(i)] for i in wanted))[1](list(values[len(known) :]))

    values = (*(args[i] for i in known), *(cotangents[k] for k in given))
    out = run(jax.make_jaxpr(cotangents_in)(*values), values, f"{name}_transpose", range(len(known), len(values)))
    return _merged(len(args), (unknown, zeros), (wanted, out))


def _batch(args: Any, dims: Any, *, jaxpr: Any, name: str, linear: Any, **_: Any) -> tuple[list[Any], list[int | None]]:
    batched = [i for i, d in enumerate(dims) if d is not None]
    reached = _regions.dependent(jaxpr.jaxpr.eqns, {jaxpr.jaxpr.invars[i] for i in batched})
    follows = [v in reached for v in jaxpr.jaxpr.outvars]
    # A batch axis stays where it is, as far as the rank allows; moving it would be a transpose in the kernel.
    places = {dims[i] for i in batched}
    place = places.pop() if len(places) == 1 else 0
    out_dims = [min(place, len(aval.shape)) if f else None for aval, f in zip(jaxpr.out_avals, follows)]
    mapped = jax.vmap(functools.partial(_plain, jaxpr=jaxpr), in_axes=tuple(dims), out_axes=out_dims)
    marks = [i for i, is_linear in enumerate(linear) if is_linear]
    return run(jax.make_jaxpr(mapped)(*args), args, name, marks), out_dims


def _with_results(params: Any, wanted: Sequence[bool]) -> tuple[list[bool], Any]:
    """Return which inputs some results need, and the parameters of the call that has these results only."""
    jaxpr = params["jaxpr"].jaxpr
    outvars = _kept(jaxpr.outvars, wanted)
    eqns = _regions.live(jaxpr.eqns, outvars)
    needed = {v for e in eqns for v in _regions.variables(e)} | {*outvars}
    used = [v in needed for v in jaxpr.invars]
    closed = ClosedJaxpr(_jaxpr(_kept(jaxpr.invars, used), outvars, eqns), ())
    return used, {**params, "jaxpr": closed, "linear": tuple(_kept(params["linear"], used))}


def _kept(values: Iterable[Any], wanted: Iterable[bool]) -> list[Any]:
    return [value for value, is_wanted in zip(values, wanted) if is_wanted]


def _part(eqn: Any, wanted: Sequence[bool]) -> tuple[list[bool], Any]:
    used, params = _with_results(eqn.params, wanted)
    invars, outvars = _kept(eqn.invars, used), _kept(eqn.outvars, wanted)
    return used, new_jaxpr_eqn(invars, outvars, fused_p, params, frozenset(), eqn.source_info, eqn.ctx)


def _drop_unused(used_outputs: Sequence[bool], *rest: Any) -> tuple[list[bool], Any]:
    eqn = rest[-1]  # JAX 0.12 passes which inputs are live before it
    if not any(used_outputs):
        return [False] * len(eqn.invars), None
    if "program" in eqn.params:
        return [True] * len(eqn.invars), eqn
    return _part(eqn, used_outputs)


# Partial evaluation. In a function that is linear in some arguments only, as a `jvp` is, nothing marks what depends on
# them: a region may make that together with what does not. The latter is known, or its transpose would be wrong.


def _unknown_results(unknown: Sequence[bool], params: Any) -> list[bool]:
    jaxpr = params["jaxpr"].jaxpr
    reached = _regions.dependent(jaxpr.eqns, _kept(jaxpr.invars, unknown))
    return [(any(unknown) if "program" in params else v in reached) for v in jaxpr.outvars]


def _partial_eval(trace: Any, *tracers: Any, **params: Any) -> list[Any]:
    unknown = _unknown_results([not t.is_known() for t in tracers], params)
    if all(unknown) or not any(unknown):
        results: list[Any] = trace.default_process_primitive(fused_p, tracers, params)
        return results
    known = [not u for u in unknown]
    parts = []
    for wanted in (known, unknown):
        used, part = _with_results(params, wanted)
        parts.append(trace.default_process_primitive(fused_p, _kept(tracers, used), part))
    numbers = range(len(unknown))
    return _merged(len(unknown), (_kept(numbers, known), parts[0]), (_kept(numbers, unknown), parts[1]))


def _partial_eval_of_checkpoint(policy: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> Any:
    unknown_out = _unknown_results(unknown, eqn.params)
    known_eqn = None
    if not all(unknown_out):
        known_eqn = _part(eqn, [not u for u in unknown_out])[1] if any(unknown_out) else eqn
    is_saved = policy(fused_p, *(v.aval for v in eqn.invars), **eqn.params)
    # A policy answers with a bool or with an object of one of JAX's classes.
    is_saved = is_saved is not False and type(is_saved).__name__ != "RecomputeType"
    if not is_saved or all(unknown_out):
        stored = [v for v, has in zip(eqn.invars, instantiated) if not has and isinstance(v, Var)]
        return known_eqn, eqn, unknown_out, [True] * len(unknown_out), stored
    if not any(unknown_out):
        return known_eqn, None, unknown_out, unknown_out, []
    used, rest = _part(eqn, unknown_out)
    stored = [v for v, has in zip(rest.invars, _kept(instantiated, used)) if not has and isinstance(v, Var)]
    return known_eqn, rest, unknown_out, unknown_out, stored


# Lowering.

_lower_as_xla = mlir.lower_fun(_plain, multiple_results=True)

_REMEDY = {
    "cpu": "install g++ or clang++, or `pip install jax-fuser[compiler]`",
    "cuda": "`pip install jax-fuser[cuda]`",
}


@functools.cache
def _warn_no_compiler(platform: str, reason: str) -> None:
    warnings.warn(
        f"fuse: fused functions run as plain XLA ops on {platform}: {reason}; {_REMEDY[platform]}; "
        "jax_fuser.doctor() shows what was found",
        RuntimeWarning,
        stacklevel=2,
    )


def _lower_as_program(ctx: Any, *operands: Any, platform: str, **params: Any) -> Any:
    jaxpr = params["jaxpr"].jaxpr
    given: str | None = params.get("program")
    if given is None and not _trace.needs_kernel(jaxpr):
        return _lower_as_xla(ctx, *operands, **params)
    reason = _ffi.can_compile(platform)
    if reason is not None:
        _warn_no_compiler(platform, reason)
        return _lower_as_xla(ctx, *operands, **params)
    on_a_mesh = _split.is_on_a_mesh(ctx)
    if given is not None and not on_a_mesh:
        return _ffi.emit_program(ctx, operands, given, platform=platform)
    draws = any(_random.draws(_trace.label(eqn)) for eqn in jaxpr.eqns)
    if on_a_mesh and (draws or _trace.has_product(jaxpr)):
        # The numbers of elements are those of the whole array; XLA knows which of them a device has. And it splits
        # what reads a product by itself.
        linear = [v for v, is_linear in zip(jaxpr.invars, params["linear"]) if is_linear]
        flat = _flatten.Flat(jaxpr.invars, jaxpr.outvars, jaxpr.eqns, [])
        inner = fused_jaxpr(flat, params["name"], linear, draws, leave_products=True)
        return mlir.lower_fun(functools.partial(jax.core.eval_jaxpr, inner, ()), multiple_results=True)(ctx, *operands)
    if on_a_mesh and not operands:
        return _lower_as_xla(ctx, *operands, **params)  # nothing says how to split it
    program, axes = _trace.write_program(jaxpr, params["name"])
    results: Sequence[Any] = ()
    if program.text is not None:
        avals = [ctx.avals_out[i] for i in program.first]
        ctx = ctx.replace(avals_out=avals)
        if on_a_mesh:
            lower = mlir.lower_fun(_split.split(axes, program.text, avals), multiple_results=True)
            results = lower(ctx, *operands)
        else:
            results = _ffi.emit_program(ctx, operands, program.text, platform=platform)
    return program.results(operands, results)


fused_p.def_impl(_impl)
fused_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[fused_p] = _jvp
ad.primitive_transposes[fused_p] = _transpose
batching.primitive_batchers[fused_p] = _batch
pe.dce_rules[fused_p] = _drop_unused
pe.custom_partial_eval_rules[fused_p] = _partial_eval
pe.partial_eval_jaxpr_custom_rules[fused_p] = _partial_eval_of_checkpoint
mlir.register_lowering(fused_p, _lower_as_xla)
for _platform in _REMEDY:
    mlir.register_lowering(fused_p, functools.partial(_lower_as_program, platform=_platform), platform=_platform)
