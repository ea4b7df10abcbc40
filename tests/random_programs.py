"""Random programs of pointwise ops, views, reductions and scans, whose exact results are known while they are chosen.

Every step is computed three times by numpy in float64: exactly, and twice with each result wrong by as much as its
dtype rounds. How far those two are off says how far a correct result may be; a step that makes more of it, or large
values, is not taken.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_fuser as jf
from jax_fuser import _core

SIZES = [1, 2, 3, 5, 17, 31, 33, 64, 257, 1000]
# A few roundings to the dtype, or the error of a function in it.
ROUNDING = {"float64": 1e-14, "float32": 4e-7, "float16": 1e-3, "bfloat16": 8e-3}
# What is allowed, in samples of what noise of that size makes: rounding is not random, and two samples are few.
NOISES = 12
# As many times that for what comes of 1 + x / 64, whose rounding is that many times the noise of x.
INSIDE = 16
MOST_NOISE = 0.01
LARGEST = 2000.0


def is_float(dtype):
    return jnp.issubdtype(dtype, jnp.floating)


def sigmoid(xp, x):
    return jax.nn.sigmoid(x) if xp is jnp else 1 / (1 + np.exp(-x))


def softmax(xp, x, axis):
    if xp is jnp:
        return jax.nn.softmax(x, axis=axis)
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def logsumexp(xp, x, axis, keepdims):
    if xp is jnp:
        return jax.nn.logsumexp(x, axis=axis, keepdims=keepdims)
    return np.log(np.exp(x).sum(axis, keepdims=keepdims))


# Along rows: of x and x again, which differ by the rounding of what is between.
def centered(xp, x, again, axis):
    return x - again.mean(axis, keepdims=True)


def layer_norm(xp, x, again, axis):
    return centered(xp, x, again, axis) / xp.sqrt(again.var(axis, keepdims=True) + 0.1)


def rms_norm(xp, x, again, axis):
    return x / xp.sqrt((again * again).mean(axis, keepdims=True) + 0.1)


UNARY = [
    lambda xp, x: xp.sin(x),
    lambda xp, x: xp.tanh(x),
    sigmoid,
    lambda xp, x: -x,
    lambda xp, x: xp.exp(-x * x),
    lambda xp, x: 1 / (1 + x * x),
    lambda xp, x: xp.log1p(x * x),
    lambda xp, x: xp.sqrt(x * x + 1),
    lambda xp, x: x * 0.5 + 1,
]
BINARY = [
    lambda xp, x, y: x + y,
    lambda xp, x, y: x - y,
    lambda xp, x, y: x * y,
    lambda xp, x, y: x / (1 + y * y),
    lambda xp, x, y: xp.sin(x) * y,
]
# Their derivatives are not defined where two values are equal, which rounding decides.
UNARY_KINKS = [lambda xp, x: xp.abs(x), lambda xp, x: xp.clip(x, -1, 1)]
BINARY_KINKS = [lambda xp, x, y: xp.maximum(x, y), lambda xp, x, y: xp.minimum(x, y)]
FOLDS = [
    lambda xp, x, axis, keep: x.sum(axis, keepdims=keep, dtype=x.dtype),
    lambda xp, x, axis, keep: x.sum(axis, keepdims=keep, dtype=x.dtype),
    lambda xp, x, axis, keep: x.mean(axis, keepdims=keep),
    lambda xp, x, axis, keep: (1 + xp.tanh(x) / 64).prod(axis, keepdims=keep),
    lambda xp, x, axis, keep: x.var(axis, keepdims=keep),
    logsumexp,
]
FOLD_KINKS = [
    lambda xp, x, axis, keep: x.max(axis, keepdims=keep),
    lambda xp, x, axis, keep: x.min(axis, keepdims=keep),
]
ROWS = [lambda xp, x, again, axis: softmax(xp, x, axis), layer_norm, rms_norm, centered]
INTEGER = [
    lambda xp, x, y: x + y,
    lambda xp, x, y: x - y,
    lambda xp, x, y: x * y,
    lambda xp, x, y: xp.bitwise_xor(x, y),
    lambda xp, x, y: xp.maximum(x, y),
    lambda xp, x, y: x // (xp.abs(y % 7) + 1),
]
INTEGER_FOLDS = [
    lambda xp, x, axis, keep: x.sum(axis, keepdims=keep, dtype=x.dtype),
    lambda xp, x, axis, keep: x.prod(axis, keepdims=keep, dtype=x.dtype),
    lambda xp, x, axis, keep: x.max(axis, keepdims=keep),
    lambda xp, x, axis, keep: x.min(axis, keepdims=keep),
]
# Along one axis, from its first element on or from its last.
SCANS = [
    lambda xp, x, axis: xp.cumsum(x, axis, dtype=x.dtype),
    lambda xp, x, axis: (
        xp.flip(xp.cumsum(xp.flip(x, axis), axis, dtype=x.dtype), axis)
        if xp is np
        else jax.lax.cumsum(x, axis % x.ndim, reverse=True)
    ),
    lambda xp, x, axis: xp.cumprod(1 + xp.tanh(x) / 64, axis, dtype=x.dtype),
    lambda xp, x, axis: np.logaddexp.accumulate(x, axis) if xp is np else jax.lax.cumlogsumexp(x, axis % x.ndim),
]
SCAN_KINKS = [
    lambda xp, x, axis: np.maximum.accumulate(x, axis) if xp is np else jax.lax.cummax(x, axis % x.ndim),
    lambda xp, x, axis: (
        np.flip(np.minimum.accumulate(np.flip(x, axis), axis), axis)
        if xp is np
        else jax.lax.cummin(x, axis % x.ndim, reverse=True)
    ),
]
INTEGER_SCANS = [SCANS[0], SCANS[1], SCAN_KINKS[0], SCAN_KINKS[1]]
COMPARE = [lambda xp, x, y: x > y, lambda xp, x, y: x <= y, lambda xp, x, y: x == y]


class Value:
    """A value of a program: its dtype, what it is, and two samples of what it may be."""

    def __init__(self, dtype, exact, noisy=None):
        self.dtype, self.exact, self.noisy = jnp.dtype(dtype), exact, noisy or [exact, exact]
        self.shape = exact.shape
        self.decides = noisy is None  # whether comparisons and integers may depend on it: rounding does not change it

    def error(self):
        if not self.exact.size or not is_float(self.dtype):
            return 0.0
        return max(np.abs(n - self.exact).max() for n in self.noisy)

    def largest(self):
        return np.abs(self.exact.astype(np.float64)).max(initial=0.0)


class Step:
    """f(xp, *operands) of the values numbered `operands`, cast to `dtype`."""

    def __init__(self, f, operands, dtype, exact=False, rounds_inside=False):
        self.f, self.operands, self.dtype, self.exact = f, operands, jnp.dtype(dtype), exact
        self.rounds_inside = rounds_inside  # the factors of a product: far more than its operand's noise makes of them

    def __call__(self, xp, operands, wide):
        result = self.f(xp, *operands)
        return cast(xp, result, self.dtype, wide)


def cast(xp, x, dtype, wide):
    if wide and is_float(dtype):
        dtype = jnp.dtype("float64")
    return x if x.dtype == dtype else x.astype(dtype)


class Shrinks:
    """How a random program is made small that fails.

    Of its `pool` of values the first `inputs` are made of `arguments`; `evaluate` computes all of them anew but those
    that are given, as `as_jax` makes them, and `wrong` says what is wrong with one.
    """

    def fails(self, i, given):
        """Return why value `i` is wrong when the values in `given` are inputs; "" if it is not."""
        given = sorted(given)
        try:
            return self.wrong(self.only(i, given)(self.arguments, [self.as_jax(k) for k in given]), i)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def only(self, i, given):
        return jf.fuse(lambda xs, ys: self.evaluate(xs, given=zip(given, ys))[i], name="failing")

    def smallest_failure(self):
        """Return the first value that is wrong, as many values before it as can be given, and why; or None."""
        for i in range(self.inputs, len(self.pool)):
            why = self.fails(i, ())
            if not why:
                continue
            given = []
            for k in range(i - 1, self.inputs - 1, -1):
                if self.fails(i, [*given, k]):
                    given.append(k)
            return i, sorted(given), self.fails(i, given) or why
        return None

    def text(self, f, given):
        try:
            return f.lower(self.arguments, [self.as_jax(k) for k in given]).as_text("fusion")
        except _core.InternalError as error:
            return str(error)


class Program(Shrinks):
    """Steps chosen from a seed. `run` computes them with JAX; `truth` are the outputs, as `Value`s.

    Args:
      seed: a list of integers.
      sizes: of the axes.
      dtypes: of the inputs.
      smooth: whether it has a derivative everywhere.
      largest: elements of any value; 0 for some choice.
      moves: what else moves elements: "pad" (with slices and concatenations), "reshape", "gather", "update".
    """

    def __init__(self, seed, steps=9, sizes=SIZES, dtypes=(), smooth=False, largest=0, moves=()):
        self.seed, self.steps, self.smooth, self.moves = seed, [], smooth, moves
        rng = self.rng = np.random.default_rng(seed)
        self.fold_rng = np.random.default_rng([*seed, 1])
        largest = self.largest = largest or int(rng.choice([2000, 2000, 2000, 10000, 10000, 40000]))
        rank = int(rng.choice([1, 2, 2, 3, 3, 4]))
        while True:
            self.extents = [int(n) for n in rng.choice(sizes, rank)]
            if np.prod(self.extents) <= largest:
                break
        third = rng.choice(["float32", "bfloat16", "float16"], 1)
        self.dtypes = dtypes or ("float32", "float32", *third, "int32", "int8")
        self.pool = [self.input(dtype) for dtype in self.dtypes]
        self.inputs = len(self.pool)
        # As JAX arrays hold them.
        self.arguments = [v.exact.astype(v.dtype) for v in self.pool]
        while len(self.steps) < steps:
            self.add(self.choose())
        last = set(range(len(self.pool) - 2, len(self.pool)))
        others = rng.integers(self.inputs, len(self.pool), int(rng.integers(1, 4)))
        self.outputs = sorted(last | {int(i) for i in others})

    def input(self, dtype):
        rng = self.rng
        first = int(rng.integers(0, len(self.extents))) if rng.random() < 0.3 else 0
        shape = [n if rng.random() < 0.8 else 1 for n in self.extents[first:]]
        values = rng.standard_normal(shape) if is_float(dtype) else rng.integers(-9, 9, shape)
        return Value(dtype, self.wide(np.asarray(values).astype(dtype)))

    @staticmethod
    def wide(x):
        return x.astype(np.float64) if is_float(x.dtype) else x

    def add(self, step):
        if step is None:
            return
        operands = [self.pool[i] for i in step.operands]
        axes = itertools.zip_longest(*(v.shape[::-1] for v in operands), fillvalue=1)
        if np.prod([max(n) for n in axes]) > self.largest:
            return
        with np.errstate(all="ignore"):
            exact = np.asarray(step(np, [v.exact for v in operands], True))
            noisy = None
            if not step.exact:
                eps = ROUNDING[step.dtype.name]
                twice = len(set(step.operands)) < len(operands)
                # A sum is as exact as its largest partial sums, however small it ends.
                folds = exact.size < max(v.exact.size for v in operands)
                noisy = []
                for k in range(2):
                    samples = [v.noisy[k] for v in operands]
                    if folds:
                        samples = [self.noise(x, eps, self.fold_rng) for x in samples]
                    sample = step(np, [self.noise(x, eps) for x in samples] if twice else samples, True)
                    noisy.append(self.noise(np.asarray(sample), eps))
        value = Value(step.dtype, exact, noisy)
        if exact.size > self.largest or not np.isfinite(exact.astype(np.float64)).all():
            return
        if not step.exact and (value.largest() > LARGEST or value.error() > MOST_NOISE * max(1.0, value.largest())):
            return
        self.pool.append(value)
        self.steps.append(step)

    def noise(self, x, eps, rng=None):
        rng = rng or self.rng
        return x * (1 + eps * rng.uniform(-1, 1, x.shape)) if is_float(x.dtype) else x

    def pick(self, test=lambda v: True, like=None):
        fit = [i for i, v in enumerate(self.pool) if test(v) and (like is None or fits(self.pool[like].shape, v.shape))]
        # The latest ones twice, so that programs grow deep.
        return int(self.rng.choice(fit + fit[-3:])) if fit else None

    def axes(self, rank):
        """Return some axes, in any order, counted from either end."""
        rng = self.rng
        count = int(rng.choice([1, 1, 1, 2, rank]))
        chosen = rng.permutation(rank)[: min(count, rank)]
        return tuple(int(a) - rank * int(rng.integers(2)) for a in chosen)

    def choose(self):
        rng = self.rng
        kind = rng.choice(["unary", "binary", "binary", "integer", "select", "cast", "view", "fold", "fold", "fold",
                           "fold integer", "any", "rows", "count", "scan", "scan integer",
                           "position"])  # fmt: skip

        def one(functions, kinks=()):
            functions = [*functions, *(() if self.smooth else kinks)]
            return functions[int(rng.integers(len(functions)))]

        if self.moves and rng.random() < 0.35:
            return getattr(self, str(rng.choice(self.moves)))(self.pick())
        floats = self.pick(lambda v: is_float(v.dtype))
        if kind == "unary":
            return Step(one(UNARY, UNARY_KINKS), [floats], self.pool[floats].dtype)
        if kind == "binary":
            other = self.pick(lambda v: is_float(v.dtype), floats)
            dtype = jnp.promote_types(self.pool[floats].dtype, self.pool[other].dtype)
            return Step(one(BINARY, BINARY_KINKS), [floats, other], dtype)
        if kind == "integer":
            x = self.pick(lambda v: v.dtype.kind == "i")
            if x is None:
                return None
            y = self.pick(lambda v: v.dtype == self.pool[x].dtype, x)
            return Step(one(INTEGER), [x, y], self.pool[x].dtype, True)
        if kind == "select":
            x = self.pick(lambda v: v.decides)
            y = self.pick(lambda v: v.decides and v.dtype == self.pool[x].dtype, x)
            a, b = (self.pick(lambda v: v.dtype == self.pool[floats].dtype, x) for _ in range(2))
            if a is None or b is None:
                return None
            shapes = [self.pool[i].shape for i in (x, y, a, b)]
            if not all(fits(s, t) for s in shapes for t in shapes):
                return None
            compare = one(COMPARE)
            return Step(lambda xp, x, y, a, b: xp.where(compare(xp, x, y), a, b), [x, y, a, b], self.pool[floats].dtype)
        if kind == "cast":
            x = self.pick(lambda v: v.largest() < 100)
            if x is None:
                return None
            if self.smooth:
                return None
            to = jnp.dtype(rng.choice(self.dtypes if self.pool[x].decides else self.dtypes[:3]))
            if not is_float(to) and is_float(self.pool[x].dtype):
                return None
            return Step(lambda xp, x: x, [x], to, not is_float(to))
        if kind == "count":
            x = self.pick(lambda v: len(v.shape) > 0 and is_float(v.dtype))
            if x is None:
                return None
            n = self.pool[x].shape[-1]
            return Step(lambda xp, x: x + xp.arange(n).astype(x.dtype) / n, [x], self.pool[x].dtype)
        if kind == "view":
            return self.view(self.pick())

        test = {
            "fold integer": lambda v: v.dtype.kind == "i",
            "scan integer": lambda v: v.dtype.kind == "i",
            "any": lambda v: v.decides,
            "position": lambda v: v.decides,
        }.get(str(kind), lambda v: is_float(v.dtype))
        x = self.pick(lambda v: test(v) and len(v.shape) > 0 and v.exact.size > 0)
        if x is None:
            return None
        value = self.pool[x]
        axis, keep = self.axes(len(value.shape)), bool(rng.integers(2))
        if kind in ("scan", "scan integer"):
            f = one(SCANS, SCAN_KINKS) if kind == "scan" else one(INTEGER_SCANS)
            exact, inside = kind == "scan integer", f is SCANS[2]
            return Step(lambda xp, x: f(xp, x, axis[0]), [x], value.dtype, exact, inside)
        if kind == "position":
            name = "argmax" if rng.integers(2) else "argmin"
            return Step(lambda xp, x: getattr(xp, name)(x, axis[0], keepdims=keep), [x], "int32", True)
        if kind == "any":
            whole, small = ("all", "any") if rng.integers(2) else ("any", "all")
            name = whole if rng.integers(2) else small
            bound = float(rng.integers(-3, 3))
            return Step(lambda xp, x: getattr(xp, name)(x > bound, axis=axis, keepdims=keep), [x], "bool", True)
        if kind == "rows":
            f = one(ROWS)
            return Step(lambda xp, x, again: f(xp, x, again, axis), [x, x], value.dtype)
        if kind == "fold integer":
            f = one(INTEGER_FOLDS)
            return Step(lambda xp, x: f(xp, x, axis, keep), [x], value.dtype, True)
        f = one(FOLDS, FOLD_KINKS)
        return Step(lambda xp, x: f(xp, x, axis, keep), [x], value.dtype, rounds_inside=f is FOLDS[3])

    def view(self, x):
        rng, value = self.rng, self.pool[x]
        shape, rank = value.shape, len(value.shape)
        exact = not is_float(value.dtype)
        kind = rng.integers(4)
        if kind == 0 and rank > 1:
            order = tuple(int(a) for a in rng.permutation(rank))
            return Step(lambda xp, x: xp.transpose(x, order), [x], value.dtype, exact)
        if kind == 1 and rank < 5:
            at = int(rng.integers(rank + 1))
            return Step(lambda xp, x: xp.expand_dims(x, at), [x], value.dtype, exact)
        if kind == 2 and 1 in shape:
            at = shape.index(1)
            return Step(lambda xp, x: xp.squeeze(x, at), [x], value.dtype, exact)
        if kind == 3 and rank < 5:
            to = (int(rng.choice(self.extents)), *shape)
            return Step(lambda xp, x: xp.broadcast_to(x, to), [x], value.dtype, exact)
        return None

    def pad(self, x):
        rng, value = self.rng, self.pool[x]
        shape, rank = value.shape, len(value.shape)
        if rank == 0 or 0 in shape:
            return None
        exact = not is_float(value.dtype)
        axis, kind = int(rng.integers(rank)), rng.integers(4)
        size = shape[axis]
        if kind == 0:
            ends = [tuple(int(n) for n in rng.integers(0, 9, 2)) if a == axis or rng.random() < 0.3 else (0, 0)
                    for a in range(rank)]  # fmt: skip
            by = int(rng.integers(2))
            return Step(lambda xp, x: xp.pad(x, ends, constant_values=by), [x], value.dtype, exact)
        if kind == 1:
            first = int(rng.integers(size))
            where = tuple(slice(first, int(rng.integers(first, size)) + 1, int(rng.integers(1, 4))) if a == axis
                          else slice(None) for a in range(rank))  # fmt: skip
            return Step(lambda xp, x: x[where], [x], value.dtype, exact)
        others = shape[:axis] + shape[axis + 1 :]
        y = self.pick(
            lambda v: v.dtype == value.dtype and len(v.shape) == rank and v.shape[:axis] + v.shape[axis + 1 :] == others
        )
        if kind == 2:
            return Step(lambda xp, x, y: xp.concatenate([x, y], axis), [x, y], value.dtype, exact)
        # What the derivative of taking an axis apart is.
        cut = int(rng.integers(size + 1))

        def parts(xp, x, y):
            head = xp.take(x, xp.arange(cut), axis) if xp is np else lax.slice_in_dim(x, 0, cut, axis=axis)
            tail = xp.take(y, xp.arange(cut, size), axis) if xp is np else lax.slice_in_dim(y, cut, size, axis=axis)
            none = [(0, 0)] * rank
            after, before = list(none), list(none)
            after[axis], before[axis] = (0, size - cut), (cut, 0)
            return xp.pad(head, after) + xp.pad(tail, before)

        if value.dtype == bool or self.pool[y].shape != shape:
            return None
        return Step(parts, [x, y], value.dtype, exact)

    def reshape(self, x):
        """Merge some neighbouring axes, or split one, or both."""
        rng, value = self.rng, self.pool[x]
        shape = list(value.shape)
        if not shape or 0 in shape:
            return None
        kind = rng.integers(4)
        if kind != 1 and len(shape) > 1:
            at = int(rng.integers(len(shape) - 1))
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        if kind != 0 and len(shape) < 6:
            at = int(rng.integers(len(shape)))
            factor = int(rng.choice([n for n in range(1, min(shape[at], 64) + 1) if shape[at] % n == 0]))
            shape[at : at + 1] = [shape[at] // factor, factor] if rng.random() < 0.5 else [factor, shape[at] // factor]
        if kind == 2:
            shape = [int(np.prod(shape))]
        return Step(lambda xp, x: xp.reshape(x, shape), [x], value.dtype, not is_float(value.dtype))

    def pick_place(self):
        """Return a value of few integers, of which the first is a place."""
        return self.pick(lambda v: v.dtype.kind == "i" and 0 not in v.shape and v.exact.size < 200)

    def gather(self, x):
        """Take rows, elements along the last axis, or a slice from a start, at places that integers of it say."""
        rng, value = self.rng, self.pool[x]
        shape, rank = value.shape, len(value.shape)
        at = self.pick_place()
        if at is None or rank == 0 or 0 in shape:
            return None
        exact = not is_float(value.dtype)
        kind, axis = rng.integers(3), int(rng.integers(rank))
        if kind == 0:
            return Step(lambda xp, x, i: xp.take(x, i.astype("int32"), axis, mode="clip"), [x, at], value.dtype, exact)
        if kind == 1:
            i = self.pick(lambda v: v.dtype.kind == "i" and v.shape[:-1] == shape[:-1])
            if i is None or self.pool[i].exact.ndim == 0:
                return None

            def along(xp, x, i):
                i = xp.clip(i.astype("int32"), 0, shape[-1] - 1)
                return xp.take_along_axis(x, i, -1) if xp is np else jnp.take_along_axis(x, i, -1, mode="clip")

            return Step(along, [x, i], value.dtype, exact)
        size = int(rng.integers(1, shape[axis] + 1))

        def window(xp, x, i):
            start = i.ravel()[0].astype("int32")
            if xp is jnp:
                return lax.dynamic_slice_in_dim(x, start, size, axis)
            start = int(start) + shape[axis] * (start < 0)
            start = int(np.clip(start, 0, shape[axis] - size))
            return x[(slice(None),) * axis + (slice(start, start + size),)]

        return Step(window, [x, at], value.dtype, exact)

    def update(self, x):
        """Write a part of another value, or of the value itself, at a place that an integer of it says."""
        rng, value = self.rng, self.pool[x]
        shape, rank = value.shape, len(value.shape)
        at = self.pick_place()
        if at is None or rank == 0 or 0 in shape:
            return None
        exact = not is_float(value.dtype)
        y = self.pick(lambda v: v.dtype == value.dtype and v.shape == shape)
        axis, adds = int(rng.integers(rank)), rng.random() < 0.4 and value.dtype != bool
        size = 1 if adds else int(rng.integers(1, shape[axis] + 1))
        place = (slice(None),) * axis

        def write(xp, x, y, i):
            start = i.ravel()[0].astype("int32")
            part = y[(*place, slice(shape[axis] - size, None))]
            if xp is jnp and not adds:
                return lax.dynamic_update_slice_in_dim(x, part, start, axis)
            part = part.squeeze(axis) if adds else part
            if xp is jnp:
                return x.at[(*place, start)].add(part)
            start = int(start) + shape[axis] * (start < 0)
            x = np.array(x)
            if not adds:
                start = int(np.clip(start, 0, shape[axis] - size))
                x[(*place, slice(start, start + size))] = part
            elif 0 <= start < shape[axis]:
                x[(*place, start)] += part
            return x

        return Step(write, [x, y, at], value.dtype, exact)

    def evaluate(self, arguments, wide=False, given=()):
        """Return all values; those in `given`, a dict, are not computed."""
        given = dict(given)
        pool = list(arguments)
        for step in self.steps:
            i = len(pool)
            pool.append(given[i] if i in given else step(jnp, [pool[k] for k in step.operands], wide))
        return pool

    def run(self, arguments, wide=False):
        """Return the outputs; `wide`: of inputs in float64, with all floats in it."""
        pool = self.evaluate(arguments, wide)
        return [pool[i] for i in self.outputs]

    def rounds_inside(self, i):
        """Return whether value `i` comes of a step that rounds inside."""
        step = i - (len(self.pool) - len(self.steps))
        return step >= 0 and (
            self.steps[step].rounds_inside or any(self.rounds_inside(k) for k in self.steps[step].operands)
        )

    def wrong(self, got, i):
        """Return whether a result differs from value `i` by more than rounding."""
        value = self.pool[i]
        got = np.asarray(got)
        if got.shape != value.shape or got.dtype != value.dtype:
            return f"{got.dtype}{list(got.shape)}, expected {value.dtype}{list(value.shape)}"
        if not is_float(value.dtype):
            return "" if np.array_equal(got, value.exact) else "another integer"
        allowed = NOISES * value.error() + 8 * ROUNDING[value.dtype.name] * max(value.largest(), 1e-3)
        allowed *= INSIDE if self.rounds_inside(i) else 1
        error = np.abs(got.astype(np.float64) - value.exact).max(initial=0)
        return "" if error <= allowed else f"off by {error:.3g}, allowed {allowed:.3g}"  # NaN is wrong

    def as_jax(self, i):
        return self.pool[i].exact.astype(self.pool[i].dtype)

    def report(self):
        """Return the smallest failing part of the program as text; without one, what is known."""
        if found := self.smallest_failure():
            i, given, why = found
            return f"seed {self.seed}, value {i}: {why}\n{self.text(self.only(i, given), given)}"
        text = self.text(jf.fuse(lambda xs, _: self.run(xs), name="failing"), ())
        return f"seed {self.seed} fails only as a whole\n{text}"


def fits(a, b):
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1]))
