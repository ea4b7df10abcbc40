"""Random programs of what users write on arrays, with infinities, NaN, ties and integers that overflow.

Floats are whole numbers so small that every order of adding gives the same bits: a fusion must give what the same
functions give by themselves in JAX, element by element.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from random_programs import Shrinks, fits, is_float

SHAPES = [(7, 33), (4, 3, 17), (130,), (1, 5), (2, 1, 9), (64, 16), (0, 3), (5, 0), (), (3, 257), (2, 3, 4, 5)]
FLOATS, INTS = ("float32", "float32", "bfloat16", "float16"), ("int32", "int32", "int8", "uint8", "int16", "uint32")
# Up to where whole numbers, and halves and quarters, and sums of them are exact.
LARGEST = {"float32": 2.0**18, "float16": 32.0, "bfloat16": 32.0}
MOST_ELEMENTS = 4000
SOME = [0, 1, 2, 3, -1, -2, 5, 7, -7, 31, 32, 33, 40, 100]  # places and amounts of shifts


def one(x):
    return jnp.ones((), x.dtype)


UNARY = {
    "neg": lambda x: -x,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "square": jnp.square,
    "cube": lambda x: x**3,
    "relu": jax.nn.relu,
    "times": lambda x: x * 3,
    "plus": lambda x: 1 + x,
    "isin": lambda x: (x == 2) | (x == 0),
    "clip": lambda x: jnp.clip(x, 0, 3),
    "to float": lambda x: x.astype("float32"),
    "to int": lambda x: x.astype("int32"),
    "to bool": lambda x: x.astype(bool),
}
UNARY_FLOAT = {
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round": jnp.round,
    "trunc": jnp.trunc,
    "half": lambda x: jnp.floor(x) * 0.5,
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "isfinite": jnp.isfinite,
    "numbers": lambda x: jnp.nan_to_num(x, nan=2.0, posinf=5.0, neginf=-3.0),
    "to int8": lambda x: x.astype("int8"),
    "to uint8": lambda x: x.astype("uint8"),
    "to uint32": lambda x: x.astype("uint32"),
    "to bfloat16": lambda x: x.astype("bfloat16"),
    "to float16": lambda x: x.astype("float16"),
    "signbit": lambda x: jnp.signbit(x + 0.0 * (x == 0)) & (x != 0) & (x == x),
}
UNARY_INT = {
    "not": jnp.invert,
    "bits": lax.population_count,
    "zeros": lax.clz,
    "to int8": lambda x: x.astype("int8"),
    "to uint16": lambda x: x.astype("uint16"),
    "to uint32": lambda x: x.astype("uint32"),
    "low bits": lambda x: x & 7,
    "shifted": lambda x: x << 3,
    "over 3": lambda x: x // 3,
    "modulo 5": lambda x: x % 5,
    "one hot": lambda x: jax.nn.one_hot(x, 5, dtype="float32"),
    "to bfloat16": lambda x: (x & 15).astype("bfloat16"),
}
BINARY = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "rem": lax.rem,
    "mod": jnp.mod,
    "floor divide": jnp.floor_divide,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "larger": lambda x, y: jnp.where(x > y, x, y),
    "first of": lambda x, y: jnp.where(x == y, jnp.zeros((), x.dtype), x),
    "clamp": lambda x, y: lax.clamp(jnp.minimum(y, 2), x, jnp.maximum(y, 2)),
}
BINARY_FLOAT = {"fmax": jnp.fmax, "fmin": jnp.fmin, "heaviside": lambda x, y: jnp.where(x < 0, 0, y).astype(x.dtype)}
BINARY_INT = {
    "div": lax.div,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "left": lax.shift_left,
    "right": lax.shift_right_arithmetic,
    "right, unsigned": lax.shift_right_logical,
    "divmod": lambda x, y: sum(jnp.divmod(x, y)),
}
LOGICAL = {"and": jnp.logical_and, "or": jnp.logical_or, "xor": jnp.logical_xor, "imply": lambda x, y: ~x | y}
FOLDS = {
    "sum": jnp.sum,
    "max": jnp.max,
    "min": jnp.min,
    "any": jnp.any,
    "all": jnp.all,
    "count": jnp.count_nonzero,
    "largest less smallest": lambda x, axis, keepdims: x.max(axis, keepdims=keepdims) - x.min(axis, keepdims=keepdims),
}
PLACES = {"argmax": jnp.argmax, "argmin": jnp.argmin}
SCANS = {"cumsum": lax.cumsum, "cummax": lax.cummax, "cummin": lax.cummin}
# Of the last axis, or of all.
VIEWS = {
    "flip": lambda x: jnp.flip(x, -1),
    "flip all": jnp.flip,
    "roll": lambda x: jnp.roll(x, 2, -1),
    "odd": lambda x: x[..., 1::2],
    "but the last": lambda x: x[..., :-1],
    "last": lambda x: x[..., -1],
    "backwards": lambda x: x[..., ::-2],
    "column": lambda x: x[..., None],
    "ravel": jnp.ravel,
    "transpose": jnp.transpose,
    "twice": lambda x: jnp.concatenate([x, x[..., :1], x], -1),
    "stack": lambda x: jnp.stack([x, x + x], -1).astype(x.dtype),
    "stack first": lambda x: jnp.stack([x, x]),
    "tile": lambda x: jnp.tile(x, 2),
    "repeat": lambda x: jnp.repeat(x, 2, -1),
    "edge": lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 2)], mode="edge"),
    "reflect": lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(2, 1)], mode="reflect"),
    "wrap": lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 1)], mode="wrap"),
    "pad": lambda x: lax.pad(x, one(x), [(0, 0, 0)] * (x.ndim - 1) + [(1, 2, 1)]),
    "crop": lambda x: lax.pad(x, one(x), [(1, -1, 0)] * (x.ndim - 1) + [(-1, 2, 0)]),
    "holes cut": lambda x: lax.pad(x, one(x), [(0, 0, 0)] * (x.ndim - 1) + [(-1, -2, 2)]),
    "tril": lambda x: jnp.tril(x, 1),
    "triu": lambda x: jnp.triu(x, -1),
    "positions": lambda x: lax.broadcasted_iota("int32", x.shape, x.ndim - 1),
    "diff": lambda x: x[..., 1:] - x[..., :-1],
    "halves": lambda x: (lambda a, b, *_: a - b)(*jnp.split(x[..., : x.shape[-1] // 2 * 2], 2, -1)),
    "gated": lambda x: (lambda a, b, *_: jnp.where(a > 0, b, 0))(*jnp.split(x[..., x.shape[-1] % 2 :], 2, -1)),
    "top": lambda x: lax.top_k(x, min(3, x.shape[-1]))[0],
    "top places": lambda x: lax.top_k(x, min(3, x.shape[-1]))[1],
    "less its largest": lambda x: x - x.max(-1, keepdims=True),
    "counted": lambda x: jnp.cumsum(x > 0, -1),
    "jit": lambda x: jax.jit(lambda x: x + x)(x),
    "vmap": lambda x: jax.vmap(lambda x: x - x.min())(x),
    "rows joined": lambda x: jnp.concatenate([x[1:], x[:1], x[:0]]),
    "rows swapped": lambda x: jnp.swapaxes(x, 0, -1),
    "moved": lambda x: jnp.moveaxis(x, -1, 0),
    "eye": lambda x: x + jnp.eye(x.shape[-1], dtype=x.dtype),
    "static places": lambda x: x[..., np.array([0, 2, 1, -1])],
    "static set": lambda x: x.at[..., 1].set(one(x)),
    "static add": lambda x: x.at[..., :2].add(one(x)),
    "static mul": lambda x: x.at[0].multiply(one(x) + one(x)),
}
# Of a value and an integer.
PLACED = {
    "take clip": lambda x, i: jnp.take(x, i, 0, mode="clip"),
    "take fill": lambda x, i: jnp.take(x, i, x.ndim - 1, mode="fill", fill_value=3),
    "take wrap": lambda x, i: jnp.take(x, i, 0, mode="wrap"),
    "row": lambda x, i: x[i],
    "column": lambda x, i: x[..., i],
    "window": lambda x, i: lax.dynamic_slice_in_dim(x, i.ravel()[0], max(x.shape[-1] // 2, 1), x.ndim - 1),
    "rows": lambda x, i: lax.dynamic_slice_in_dim(x, i.ravel()[-1], 2, 0),
    "index": lambda x, i: lax.dynamic_index_in_dim(x, i.ravel()[0], 0, keepdims=False),
    "set row": lambda x, i: x.at[i.ravel()[0]].set(one(x)),
    "set column": lambda x, i: x.at[..., i.ravel()[0]].set(x[..., 0]),
    "add row": lambda x, i: x.at[i.ravel()[0]].add(x[0]),
    "max row": lambda x, i: x.at[i.ravel()[0]].max(x[-1]),
    "mul column": lambda x, i: x.at[..., i.ravel()[0]].multiply(one(x) + one(x)),
    "update": lambda x, i: lax.dynamic_update_slice_in_dim(x, x[1:], i.ravel()[0], 0),
    "along": lambda x, i: jnp.take_along_axis(x, jnp.broadcast_to(i.ravel()[:1], x.shape[:-1])[..., None], -1),
    "along clip": lambda x, i: jnp.take_along_axis(
        x, jnp.argsort(x, -1).astype(i.dtype) + i.ravel()[0], -1, mode="clip"
    ),
    "cases": lambda x, i: lax.select_n(
        jnp.broadcast_to(jnp.clip(i.ravel()[0], 0, 2).astype("int32"), x.shape), x, x + x, x - 1
    ),
    "mask": lambda x, i: jnp.where(lax.broadcasted_iota(i.dtype, x.shape, 0) < i.ravel()[0], x, 0),
    "cond": lambda x, i: lax.cond(i.ravel()[0] > 0, lambda x: x + x, lambda x: x - 1, x),
    "loop": lambda x, i: lax.fori_loop(0, 3, lambda k, x: x + k.astype(x.dtype), x),
    "roll": lambda x, i: jnp.roll(x, i.ravel()[0], -1),
    "search": lambda x, i: jnp.searchsorted(jnp.arange(5, dtype=i.dtype), i),
    "amount": lambda x, i: x + i.astype(x.dtype).ravel()[0],
}  # fmt: skip


class Exact(Shrinks):
    """Steps (name, function, operands) chosen from a seed; `pool` holds what JAX alone makes of them."""

    def __init__(self, seed, steps=6):
        self.seed, self.steps = seed, []
        rng = self.rng = np.random.default_rng(seed)
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        self.pool = [
            self.floats(shape, str(rng.choice(FLOATS))),
            self.floats(shape if rng.random() < 0.5 else shape[-1:], "float32"),
            self.integers(shape, str(rng.choice(INTS))),
            jnp.asarray(rng.choice(SOME, shape[-1:]).astype("int32")),
            jnp.asarray(rng.random(shape) < 0.5),
            jnp.asarray(np.int32(rng.choice(SOME))),
        ]
        self.inputs, self.arguments = len(self.pool), list(self.pool)
        # Chosen by shapes alone, then computed together: one compilation.
        while len(self.steps) < steps:
            self.add(self.choose())
        self.finish(jax.jit(self.evaluate)(self.arguments))

    def finish(self, pool):
        """Keep what all values are, and choose outputs."""
        self.pool, rng = pool, self.rng
        exact = self.exact()
        last = [i for i in exact if i >= self.inputs][-2:]
        self.outputs = sorted({*last, *(int(i) for i in rng.choice(exact, int(rng.integers(1, 4))))})

    def floats(self, shape, dtype):
        """Whole numbers with ties; in half of the arrays infinities or NaN, too."""
        x = self.rng.integers(-4, 5, shape).astype(np.float64)
        for special in (np.inf, -np.inf, np.nan, -0.0):
            if self.rng.random() < 0.3:
                x = np.where(self.rng.random(shape) < 0.1, special, x)
        return jnp.asarray(x, dtype)

    def integers(self, shape, dtype):
        limits = jnp.iinfo(dtype)
        x = self.rng.integers(max(-6, limits.min), 7, shape)
        extreme = self.rng.choice([limits.min, limits.max, limits.max - 1, 0], shape)
        return jnp.asarray(np.where(self.rng.random(shape) < 0.2, extreme, x).astype(dtype))

    def pick(self, test=lambda x: True):
        fit = [i for i, x in enumerate(self.pool) if test(x)]
        return int(self.rng.choice(fit + fit[-3:])) if fit else 0

    def one(self, *tables):
        table = {k: v for t in tables for k, v in t.items()}
        name = str(self.rng.choice(list(table)))
        return name, table[name]

    def choose(self):
        """Return a step: its name, function and the numbers of its operands."""
        rng, a = self.rng, self.pick()
        x = self.pool[a]
        own = {"f": (UNARY_FLOAT, BINARY_FLOAT), "i": (UNARY_INT, BINARY_INT), "u": (UNARY_INT, BINARY_INT)}.get(
            "f" if is_float(x.dtype) else x.dtype.kind, ({}, LOGICAL)
        )
        kind = rng.choice(["unary", "binary", "binary", "select", "fold", "place", "scan", "view", "view", "placed",
                           "placed", "transpose", "reshape"])  # fmt: skip
        if kind == "unary":
            return *self.one(UNARY if x.dtype != bool else {"not": jnp.logical_not}, own[0]), [a]
        if kind == "binary":
            b = self.pick(lambda y: y.dtype == x.dtype and fits(x.shape, y.shape))
            return *self.one(BINARY if x.dtype != bool else {}, own[1]), [a, b]
        if kind == "select":
            c = self.pick(lambda y: y.dtype == bool and fits(x.shape, y.shape))
            b = self.pick(lambda y: y.dtype == x.dtype and fits(x.shape, y.shape))
            return "select", jnp.where, [c, a, b]
        if kind in ("fold", "place", "scan") and x.ndim:
            axis, keep = int(rng.integers(x.ndim)), bool(rng.integers(2))
            name, f = self.one({"fold": FOLDS, "place": PLACES, "scan": SCANS}[str(kind)])
            if kind == "scan":
                return name, lambda x: f(x, axis, reverse=keep), [a]
            axes = None if rng.random() < 0.2 else axis
            return name, lambda x: f(x, axis=axes, keepdims=keep), [a]
        if kind == "view":
            return *self.one(VIEWS), [a]
        if kind == "placed":
            return *self.one(PLACED), [a, self.pick(lambda i: i.dtype.kind == "i")]
        if kind == "transpose":
            order = [int(i) for i in rng.permutation(x.ndim)]
            return "transpose", lambda x: x.transpose(order), [a]
        wide = [n for n in range(1, 9) if x.size and x.size % n == 0]
        n = int(rng.choice(wide or [1]))
        return "reshape", lambda x: x.reshape((n, -1) if x.size else x.shape[::-1]), [a]

    def add(self, step):
        _, f, operands = step
        try:
            value = jax.eval_shape(f, *(self.pool[i] for i in operands))
        except (TypeError, ValueError, IndexError, OverflowError):  # no such op on these
            return
        if value.size <= MOST_ELEMENTS:
            self.steps.append(step)
            self.pool.append(value)

    def exact(self):
        """Return the values that are the same in every order of adding, and whose operands are."""
        found = list(range(self.inputs))
        for i, (name, _, operands) in enumerate(self.steps, self.inputs):
            sums = name in ("sum", "cumsum") and is_float(self.pool[i].dtype)
            rounding = rounds(self.pool[i]) or (sums and rounds(jnp.sum(jnp.abs(self.pool[operands[0]]))))
            if all(k in found for k in operands) and not rounding:
                found.append(i)
        return found

    def evaluate(self, arguments, given=()):
        """Return all values; those in `given`, a dict, are not computed."""
        given, pool = dict(given), list(arguments)
        for _, f, operands in self.steps:
            i = len(pool)
            pool.append(given[i] if i in given else f(*(pool[k] for k in operands)))
        return pool

    def run(self, arguments):
        pool = self.evaluate(arguments)
        return [pool[i] for i in self.outputs]

    def wrong(self, got, i):
        """Return whether a result is not value `i`, element by element."""
        got, want = np.asarray(got), np.asarray(self.pool[i])
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        if is_float(want.dtype):
            got, want = got.astype(np.float64), want.astype(np.float64)
        same = (got == want) | ((got != got) & (want != want))
        at = np.argwhere(~same)[:3]
        return "" if same.all() else f"{(~same).sum()} elements: {[(*p, got[*p], want[*p]) for p in at.tolist()]}"

    def as_jax(self, i):
        return self.pool[i]

    def report(self):
        """Return the smallest failing part of the program as text; without one, what is known."""
        names = [name for name, *_ in self.steps]
        if found := self.smallest_failure():
            i, given, why = found
            step = self.steps[i - self.inputs] if i >= self.inputs else ("", None, [])
            return f"seed {self.seed}, value {i} ({step[0]}): {why}\n{names}\n{self.text(self.only(i, given), given)}"
        return f"seed {self.seed} fails only as a whole: {names}, outputs {self.outputs}"


def rounds(x):
    """Return whether a float is too large, or has too many digits, to be exact after a few more steps."""
    if not is_float(x.dtype):
        return False
    largest, x = LARGEST[x.dtype.name], np.asarray(x, np.float64)
    x = x[np.isfinite(x)]
    return bool((np.abs(x) > largest).any() or (x * 4 % 1).any())
