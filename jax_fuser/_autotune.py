"""Parameters of kernels by measurement: what the compiler would choose, against its neighbours."""

from __future__ import annotations

import contextlib
import numbers
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _core, _ffi, _tuned, _walk
from ._progress import ProgressLine

# Copies of a call in what is timed: launches one after the other hide what starting the program costs. Of small calls
# as many as make up bytes that take longer than that.
_COPIES, _MOST_COPIES, _BYTES = 4, 32, 256 << 20
# A timing is of as many runs, each of those copies, as take about so long: starting the first and waiting for the last
# takes as long as a dozen small kernels.
_SECONDS, _MOST_RUNS = 3e-3, 30
_ROUNDS = 5  # timings of each candidate, in another order each time
_STEPS = 3  # from a kernel's parameters to those of a neighbour
_GAIN = 0.98  # of the time: less is noise


@dataclass(frozen=True)
class TunedKernel:
    """A kernel with the parameters that were fastest, and seconds of the call that it is part of."""

    kernel: str
    parameters: str  # empty: the compiler's own
    before: float
    after: float


@dataclass(frozen=True)
class Tuning:
    """The answer of `autotune`: what was chosen for each kernel; its text is a table."""

    kernels: tuple[TunedKernel, ...]
    seconds: float
    complete: bool

    def __repr__(self) -> str:
        width = max((len(k.kernel) for k in self.kernels), default=0)
        lines = [
            f"{k.kernel:<{width}}  {k.before * 1e3:10.4f} ms -> {k.after * 1e3:10.4f} ms  "
            f"{k.parameters or 'as the compiler chooses'}"
            for k in self.kernels
        ]
        end = "" if self.complete else "; stopped before all was measured: give it more `seconds`"
        kernels = "kernel" if len(self.kernels) == 1 else "kernels"
        return "\n".join([*lines, f"{len(self.kernels)} {kernels} in {self.seconds:.0f} s{end}"])


@dataclass
class _Call:
    """A primitive of ours as a function called it."""

    primitive: Any
    operands: tuple[Any, ...]
    params: dict[str, Any]

    def __call__(self, *operands: Any) -> Sequence[Any]:
        results = self.primitive.bind(*operands, **self.params)
        return results if self.primitive.multiple_results else [results]


def autotune(f: Callable[..., Any], *args: Any, seconds: float = 300.0, progress: bool = True, **kwargs: Any) -> Tuning:
    """Measure which parameters the kernels of `f` are fastest with, and keep them.

    Evaluates `f(*args, **kwargs)` once, op by op, and tries for each kernel of ours in it the parameters next to those
    that the compiler chooses: tiles, clusters and stages of grouped products, threads, vectors in flight and
    stages of generated kernels. The arguments must be representative: on a GPU the sizes of groups decide as much as
    shapes do. What is fastest (by 2 % at least) is kept in the folder of the compile cache, for this package's version
    and this machine's device, and taken by whatever is compiled later with the same program: equal function, shapes
    and dtypes. What was compiled before keeps its kernels; `jax.clear_caches()` forgets it. Exports have the compiler's
    choices: the machine that loads them may be another. What is split over several devices, by `shard_map` or by where
    arrays lie, is not seen: tune what one of them computes.

    Parameters change the speed and never what is computed; only the order of sums, hence their last bits, may change.
    What computes anything else than the compiler's choice is not taken.

    Args:
      f: any function that can be called with the arguments outside of `jit`; it may be jitted, fused, differentiated.
      *args: arrays and pytrees of arrays, on the device to be tuned for; whatever else `f` takes is passed as it is.
      seconds: about how long to measure, more than 0; what is found by then is kept, and so is what an earlier run
        found for kernels that this one did not get to.
      progress: whether to say on stderr what is measured: in one line on a terminal, else in a line for each kernel.
      **kwargs: passed on to `f`.

    Returns:
      A `Tuning`; print it.

    Raises:
      UserError: inside of a transformation such as `jit`, for `seconds` that are no positive number, and where `f`
        calls no kernel with parameters to choose.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> f = jf.fuse(lambda x: jax.nn.softmax(x, axis=-1))
      >>> tuning = jf.autotune(f, jnp.ones((256, 128)), seconds=5, progress=False)
      >>> [k.after <= k.before for k in tuning.kernels]
      [True]
    """
    begin = time.monotonic()
    _check(f, jax.tree.leaves((args, kwargs)), seconds)
    calls = _calls(f, args, kwargs)
    number, end = len(calls), begin + float(seconds)
    tuned: list[TunedKernel] = []
    complete, seen = True, set()
    with ProgressLine("autotune", progress) as line:
        for i in range(number):
            if tuned and time.monotonic() > end:
                complete = False
                break
            call = calls.pop(0)  # gives memory back
            for program, target in _programs(call):
                if (program, target) in seen:
                    continue
                seen.add((program, target))
                search = _Search(call, program, target, end, line, f"{i + 1}/{number}")
                tuned += search.run()
                complete &= search.complete
    if not tuned:
        raise _core.UserError(
            "autotune: the function calls no kernel of jax_fuser that has parameters to choose; jax_fuser.explain and "
            "jax_fuser.doctor say what runs. Inside of shard_map and for arrays that lie on several devices none is "
            "seen: pass what one device computes, with its part of the arrays"
        )
    return Tuning(tuple(tuned), time.monotonic() - begin, complete)


def _check(f: Any, leaves: Sequence[Any], seconds: Any) -> None:
    if not callable(f):
        raise TypeError(f"autotune: expected a function, got {type(f).__name__}; write jf.autotune(f, x)")
    if not (isinstance(seconds, numbers.Real) and float(seconds) > 0):
        raise _core.UserError(f"autotune: expected seconds to be a positive number, got {seconds!r}")
    for leaf in leaves:
        _check_is_no_tracer(leaf)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise _core.UserError(f"autotune: expected arrays to measure with, got {leaf}; make one with its sizes")


def _check_is_no_tracer(value: Any) -> None:
    if isinstance(value, jax.core.Tracer):
        raise _core.UserError("autotune: expected arrays to measure with, got traced values; call it outside of jit")


def _calls(f: Callable[..., Any], args: Any, kwargs: Any) -> list[_Call]:
    """Return what `f` calls of ours, with its operands; calls of equal programs once."""
    calls: dict[Any, _Call] = {}

    def note(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> None:
        for x in operands:
            _check_is_no_tracer(x)  # that the function closes over
        types = tuple((np.shape(x), str(jnp.result_type(x))) for x in operands)
        call = _Call(primitive, tuple(map(jnp.asarray, operands)), dict(params))
        calls.setdefault((primitive, types, str(params)), call)

    _walk.walk(f, args, kwargs, note)
    return list(calls.values())


def _programs(call: _Call) -> list[tuple[str, str]]:
    with _tuned.programs_seen() as seen:
        jax.jit(call.__call__).lower(*call.operands)
    platform = next(iter(call.operands[0].devices())).platform if call.operands else jax.default_backend()
    target = _ffi.target_text("cuda" if platform in ("gpu", "cuda") else "cpu")
    return [(program, target) for program in dict.fromkeys(seen)]


class _Search:
    """From what the compiler chooses for a program's kernels to faster neighbours, kernel by kernel."""

    def __init__(self, call: _Call, program: str, target: str, end: float, line: ProgressLine, number: str):
        self._call, self._program, self._target, self._line, self._number = call, program, target, line, number
        self._end = end
        self._expected: Sequence[Any] | None = None  # what the compiler's choice computes
        size = sum(operand.nbytes for operand in call.operands)
        self._copies = min(max(_COPIES, _BYTES // max(size, 1)), _MOST_COPIES)
        self.complete = True

    def run(self) -> list[TunedKernel]:
        choices: dict[str, str] = {}
        kernels = [kernel for kernel, _, _ in _core.alternatives(self._program, self._target)]
        tuned: list[TunedKernel] = []
        for kernel in kernels:
            if tuned and time.monotonic() > self._end:
                self.complete = False
                break
            before, after = self._tune(kernel, choices)
            parameters = choices.get(kernel, "")
            tuned.append(TunedKernel(kernel, parameters, before, after))
            times = f"{before * 1e3:.4f} ms -> {after * 1e3:.4f} ms"
            self._line.done(f"{self._number} {kernel}: {times}, {parameters or 'as the compiler chooses'}")
        if not self.complete:  # what an earlier run found for what this one did not get to
            both = {**_tuned.choices_of(_tuned.kept(self._program, self._target)), **choices}
            choices = both if self._is_possible(both) else choices
        if kernels:
            _tuned.keep(self._program, self._target, choices)
        return tuned

    def _alternatives(self, kernel: str, choices: dict[str, str]) -> tuple[str, list[str]]:
        found = _core.alternatives(self._program + _tuned.text_of(choices), self._target)
        return next((now, others) for name, now, others in found if name == kernel)

    def _tune(self, kernel: str, choices: dict[str, str]) -> tuple[float, float]:
        """Put the best parameters of a kernel into `choices`; return seconds of the call before and after."""
        now, others = self._alternatives(kernel, choices)
        own, tried = now.split(), {now}
        before = after = 0.0
        for _ in range(_STEPS):
            new = [other for other in others if other not in tried]
            changes = [" ".join(word for word in other.split() if word not in own) for other in new]
            candidates = [choices, *({**choices, kernel: change} for change in changes)]
            runs = self._runs(kernel, candidates)
            times = self._times(kernel, candidates, runs)
            best = min(times, key=lambda i: times[i])
            if best > 0 and times[best] <= _GAIN * times[0]:  # the best of many times may be luck
                times = self._times(kernel, candidates, {i: runs[i] for i in (0, best)})
            before = before or times[0]
            after = after or before
            if best == 0 or times[best] > _GAIN * times[0]:
                break
            after *= times[best] / times[0]
            choices.update(candidates[best])
            tried.update(new)
            now, others = self._alternatives(kernel, choices)
        return before, after

    def _runs(self, kernel: str, candidates: list[dict[str, str]]) -> dict[int, Callable[[], Any]]:
        """Return the call with each of the candidates that a kernel can have, by their places; the first is there."""
        if time.monotonic() > self._end:
            self.complete, candidates = False, candidates[:1]
        unlike: dict[tuple[str, ...], int] = {}  # parameters that change no kernel are not tried
        for i, choices in enumerate(candidates):
            unlike.setdefault(self._kernels(choices), i)
        possible = [i for i in unlike.values() if self._is_possible(candidates[i]) or i == 0]
        runs: dict[int, Callable[[], Any]] = {}
        for i in possible:
            self._line.write(f"{self._number} {kernel}: {i + 1} of {len(candidates)} compiled")
            if i > 0 and time.monotonic() > self._end:
                self.complete = False
                break
            refused = (jax.errors.JaxRuntimeError, _core.UserError) if i > 0 else ()
            with contextlib.suppress(*refused):
                run = self._compiled(candidates[i])
                results = run()
                self._expected = results if self._expected is None else self._expected
                if i == 0 or all(map(_are_close, results, self._expected)):
                    runs[i] = run
        return runs

    def _times(
        self, kernel: str, candidates: list[dict[str, str]], runs: Mapping[int, Callable[[], Any]]
    ) -> dict[int, float]:
        """Return the median seconds of each of the runs."""
        samples: dict[int, list[float]] = {i: [] for i in runs}
        number = min(max(1, round(_SECONDS / self._seconds(runs[0], 1))), _MOST_RUNS)
        for turn in range(_ROUNDS):
            for i in random.sample(list(runs), len(runs)):
                samples[i].append(self._seconds(runs[i], number) / self._copies)
            done = {i: statistics.median(s) for i, s in samples.items()}
            best = min(done, key=lambda i: done[i])
            parameters = candidates[best].get(kernel, "as it is")
            self._line.write(f"{self._number} {kernel}: {turn + 1}/{_ROUNDS} {done[best] * 1e3:.4f} ms, {parameters}")
        return done

    def _seconds(self, run: Callable[[], Any], number: int) -> float:
        """Return what each of `number` runs takes. A GPU has the next one waiting when one ends; a CPU is not given two
        at once."""
        begin, on_cpu = time.perf_counter(), not self._target.startswith("cuda")
        for i in range(number):
            results = run()
            if on_cpu or i == number - 1:
                jax.block_until_ready(results)
        return (time.perf_counter() - begin) / number

    def _kernels(self, choices: dict[str, str]) -> tuple[str, ...]:
        """Return what tells the kernels and launches of these parameters from others; nothing where there are none."""
        try:
            stages = _core.stages(self._program + _tuned.text_of(choices), self._target)
        except (_core.UserError, _core.InternalError):
            return ()
        return stages["source"], stages["host"]

    def _is_possible(self, choices: dict[str, str]) -> bool:
        """Return whether kernels can have these parameters; if so, they are compiled in the background."""
        try:
            _core.workspace_bytes(self._program + _tuned.text_of(choices), self._target, at_once=True)
        except (_core.UserError, _core.InternalError):
            return False
        return True

    def _compiled(self, choices: dict[str, str]) -> Callable[[], Any]:
        """Return what runs copies of the call."""

        def copies(*operands: Any) -> Any:
            for _ in range(self._copies):
                results = self._call(*operands)
                # The next begins when this one has ended (and is not taken for the same: `_ffi.emit_program`).
                operands, results = jax.lax.optimization_barrier((operands, results))
            return results

        with _tuned.trial(self._program, choices):
            compiled = jax.jit(copies).lower(*self._call.operands).compile()
        return lambda: compiled(*self._call.operands)


@jax.jit
def _are_close(one: jax.Array, other: jax.Array) -> jax.Array:
    """Return whether two results differ by no more than another order of sums makes."""
    if not jnp.issubdtype(one.dtype, jnp.floating):
        return jnp.array_equal(one, other)
    wide = one.dtype if one.dtype.itemsize >= 4 else jnp.float32  # which sums are computed in
    allowed = max(50 * float(jnp.finfo(wide).eps), 4 * float(jnp.finfo(one.dtype).eps))
    one, other = one.astype(wide), other.astype(wide)
    size = jnp.max(jnp.where(jnp.isfinite(other), jnp.abs(other), 0), initial=0)
    return jnp.allclose(one, other, rtol=allowed, atol=allowed * size, equal_nan=True)
