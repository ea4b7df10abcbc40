"""Parameters of kernels by measurement: what the compiler would choose, against its neighbours."""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _core, _ffi, _tuned, _walk

_COPIES = 4  # of a call in what is timed: launches one after the other hide what starting the program costs
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
            f"{k.kernel:<{width}}  {k.before * 1e3:9.3f} ms -> {k.after * 1e3:9.3f} ms  "
            f"{k.parameters or 'as the compiler chooses'}"
            for k in self.kernels
        ]
        end = "" if self.complete else "; stopped before all was measured: give it more `seconds`"
        return "\n".join([*lines, f"{len(self.kernels)} kernels in {self.seconds:.0f} s{end}"])


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
    and dtypes. What was compiled before keeps its kernels; `jax.clear_caches()` forgets it.

    Parameters change the speed and never what is computed; only the order of sums, hence their last bits, may change.
    What computes anything else than the compiler's choice is not taken.

    Args:
      f: any function that can be called with the arguments outside of `jit`; it may be jitted, fused, differentiated.
      *args: arrays and pytrees of arrays, on the device to be tuned for.
      seconds: about how long to measure; what is found by then is kept.
      progress: whether to write a line that says what is measured to stderr.
      **kwargs: passed on to `f`.

    Returns:
      A `Tuning`; print it.

    Raises:
      UserError: inside of a transformation such as `jit`, and where `f` calls no kernel with parameters to choose.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> f = jf.fuse(lambda x: jax.nn.softmax(x, axis=-1))
      >>> tuning = jf.autotune(f, jnp.ones((256, 128)), seconds=5, progress=False)
      >>> [k.after <= k.before for k in tuning.kernels]
      [True]
    """
    begin = time.monotonic()
    if not callable(f):
        raise _core.UserError(f"autotune: expected a function, got {type(f).__name__}")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
        raise _core.UserError("autotune: expected arrays to measure with, got traced values; call it outside of jit")
    calls = _calls(f, args, kwargs)
    line = _Line(progress)
    tuned: list[TunedKernel] = []
    complete, seen = True, set()
    for i, call in enumerate(calls):
        for program, target in _programs(call):
            if (program, target) in seen:
                continue
            seen.add((program, target))
            search = _Search(call, program, target, begin + seconds, line, f"{i + 1}/{len(calls)}")
            tuned += search.run()
            complete &= search.complete
    line.end()
    if not tuned:
        raise _core.UserError(
            "autotune: the function calls no kernel of jax_fuser that has parameters to choose; jax_fuser.explain and "
            "jax_fuser.doctor say what runs"
        )
    return Tuning(tuple(tuned), time.monotonic() - begin, complete)


def _calls(f: Callable[..., Any], args: Any, kwargs: Any) -> list[_Call]:
    """Return what `f` calls of ours, with its operands; calls of equal programs once."""
    calls: dict[Any, _Call] = {}

    def note(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> None:
        types = tuple((np.shape(x), str(jnp.result_type(x))) for x in operands)
        calls.setdefault((primitive, types, str(params)), _Call(primitive, tuple(operands), dict(params)))

    _walk.walk(f, args, kwargs, note)
    return list(calls.values())


def _programs(call: _Call) -> list[tuple[str, str]]:
    with _tuned.programs_seen() as seen:
        jax.jit(call.__call__).lower(*call.operands)
    platform = next(iter(jax.tree.leaves(call.operands)[0].devices())).platform if call.operands else ""
    target = _ffi.target_text("cuda" if platform in ("gpu", "cuda") else "cpu")
    return [(program, target) for program in dict.fromkeys(seen)]


class _Search:
    """From what the compiler chooses for a program's kernels to faster neighbours, kernel by kernel."""

    def __init__(self, call: _Call, program: str, target: str, end: float, line: _Line, number: str):
        self._call, self._program, self._target, self._line, self._number = call, program, target, line, number
        self._end = end
        self._expected: Sequence[Any] | None = None  # what the compiler's choice computes
        self.complete = True

    def run(self) -> list[TunedKernel]:
        choices: dict[str, str] = {}
        kernels = [kernel for kernel, _, _ in _core.alternatives(self._program, self._target)]
        tuned = []
        for kernel in kernels:
            before, after = self._tune(kernel, choices)
            tuned.append(TunedKernel(kernel, choices.get(kernel, ""), before, after))
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
            times = self._times(kernel, candidates)
            best = min(times, key=lambda i: times[i])
            before = before or times[0]
            after = after or before
            if best == 0 or times[best] > _GAIN * times[0]:
                break
            after *= times[best] / times[0]
            choices.update(candidates[best])
            tried.update(new)
            now, others = self._alternatives(kernel, choices)
        return before, after

    def _times(self, kernel: str, candidates: list[dict[str, str]]) -> dict[int, float]:
        """Return the median seconds of the call with each of the candidates that a kernel can have."""
        possible = [i for i, choices in enumerate(candidates) if self._is_possible(choices)]
        runs: dict[int, Callable[[], Any]] = {}
        for i in possible:
            self._line.write(f"{self._number} {kernel}: {i + 1} of {len(candidates)} compiled")
            if i > 0 and time.monotonic() > self._end:
                self.complete = False
                break
            with contextlib.suppress(jax.errors.JaxRuntimeError, _core.UserError):
                run = self._compiled(candidates[i])
                if run is not None:
                    runs[i] = run
        samples: dict[int, list[float]] = {i: [] for i in runs}
        for turn in range(_ROUNDS):
            for i in random.sample(list(runs), len(runs)):
                begin = time.perf_counter()
                runs[i]()
                samples[i].append((time.perf_counter() - begin) / _COPIES)
            done = {i: statistics.median(s) for i, s in samples.items()}
            best = min(done, key=lambda i: done[i])
            parameters = candidates[best].get(kernel, "as it is")
            self._line.write(f"{self._number} {kernel}: {turn + 1}/{_ROUNDS} {done[best] * 1e3:.3f} ms, {parameters}")
        return done

    def _is_possible(self, choices: dict[str, str]) -> bool:
        """Return whether kernels can have these parameters; if so, they are compiled in the background."""
        try:
            _core.workspace_bytes(self._program + _tuned.text_of(choices), self._target, at_once=True)
        except (_core.UserError, _core.InternalError):
            return False
        return True

    def _compiled(self, choices: dict[str, str]) -> Callable[[], Any] | None:
        """Return what runs copies of the call; None where its results are not those of the compiler's choice."""

        def copies(*operands: Any) -> Any:
            for _ in range(_COPIES):
                results = self._call(*operands)
                # The next begins when this one has ended, and is not taken for the same.
                operands, results = jax.lax.optimization_barrier((operands, results))
            return results

        with _tuned.trial(self._program, choices):
            compiled = jax.jit(copies).lower(*self._call.operands).compile()
        run = lambda: jax.block_until_ready(compiled(*self._call.operands))  # noqa: E731
        results = run()
        if self._expected is None:
            self._expected = results
        return run if all(map(_are_close, results, self._expected)) else None


@jax.jit
def _are_close(one: jax.Array, other: jax.Array) -> jax.Array:
    """Return whether two results differ by no more than another order of sums makes."""
    if not jnp.issubdtype(one.dtype, jnp.floating):
        return jnp.array_equal(one, other)
    allowed = 50 * float(jnp.finfo(one.dtype).eps)
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    size = jnp.max(jnp.where(jnp.isfinite(other), jnp.abs(other), 0), initial=0)
    return jnp.allclose(one, other, rtol=allowed, atol=allowed * size, equal_nan=True)


class _Line:
    """One line on stderr that says where the work is."""

    def __init__(self, shown: bool):
        self._shown, self._begin = shown, time.monotonic()

    def write(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\x1b[Kautotune {text}, {time.monotonic() - self._begin:.0f} s")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\n")
