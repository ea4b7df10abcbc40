"""Random functions of nested tensors, whose exact results are known by a loop over groups while they are chosen.

As in random_programs.py every step is computed three times in float64: exactly, and twice with each result wrong by as
much as its dtype rounds, which says how far a correct result may be off.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from random_programs import BINARY, LARGEST, MOST_NOISE, NOISES, ROUNDING, ROWS, UNARY, Shrinks, is_float

import jax_fuser as jf

WIDTHS = [1, 2, 3, 8, 17, 33, 64, 130, 257]
FOLDS = [
    lambda xp, x: x.sum(-1, keepdims=True, dtype=x.dtype),
    lambda xp, x: x.mean(-1, keepdims=True),
    lambda xp, x: x.var(-1, keepdims=True),
]
# Of the rows of each group: ours, and that of one group's rows. An empty group has a finite value, too.
GROUP_FOLDS = [
    (lambda nt: jf.nested.sum(nt), lambda x: x.sum(0)),
    (lambda nt: jf.nested.mean(nt), lambda x: x.sum(0) / max(len(x), 1)),
    (lambda nt: jnp.maximum(jf.nested.max(nt), -4), lambda x: x.max(0, initial=-4)),
    (lambda nt: jnp.minimum(jf.nested.min(nt), 4), lambda x: x.min(0, initial=4)),
    (lambda nt: jf.nested.prod(nt), lambda x: x.prod(0)),
]


def softmax(x):
    """Softmax over rows."""
    e = np.exp(x - x.max(0, initial=-np.inf))
    return e / e.sum(0)


OPERATORS = [lambda xp, x, y: x + y, lambda xp, x, y: y - x, lambda xp, x, y: x * y]


class Layout:
    """Where the rows of each component lie: (outer index, group) in order, with rows first .. first + count."""

    def __init__(self, rng):
        self.outer = int(rng.choice([0, 0, 0, 2, 3]))  # 0: no outer dimension
        self.shared = self.outer > 0 and bool(rng.random() < 0.4)
        self.groups = int(rng.choice([1, 2, 3, 5, 9, 40]))
        own = [self.counts(rng) for _ in range(1 if self.shared else max(self.outer, 1))]
        gapped = bool(rng.random() < 0.25)
        self.capacity = max(sum(counts) for counts in own) + int(rng.choice([0, 0, 1, 7])) + 3 * gapped or 1
        places = [self.place(rng, counts) if gapped else np.cumsum([0, *counts[:-1]]) for counts in own]
        drop = (lambda x: x[0]) if self.outer == 0 or self.shared else (lambda x: x)
        self.extents = np.array(drop(own), np.int32)
        self.starts = np.array(drop(places), np.int32) if gapped else None
        each = [list(zip(p, c)) for p, c in zip(places, own)] * (self.outer if self.shared else 1)
        self.components = [(d, g, int(s), int(n)) for d, spans in enumerate(each) for g, (s, n) in enumerate(spans)]

    def counts(self, rng):
        kind = rng.integers(4)
        counts = rng.integers(0, int(rng.choice([2, 5, 20])), self.groups)
        if kind == 0:
            counts[rng.permutation(self.groups)[1:]] = 0  # all rows in one
        if kind == 1:
            counts[: self.groups // 2] = 0
        return counts.tolist() if rng.random() < 0.95 else [0] * self.groups

    def place(self, rng, counts):
        """Put groups in any order, with gaps as far as there is room."""
        left, at = self.capacity - sum(counts), 0
        starts = [0] * self.groups
        for g in rng.permutation(self.groups):
            gap = int(rng.integers(0, left + 1)) if rng.random() < 0.5 else 0
            left, starts[g] = left - gap, at + gap
            at += gap + counts[g]
        return starts

    @property
    def lead(self):
        return (self.outer,) * (self.outer > 0)

    def of(self, component, stored):
        """Return the part of a per-group array that belongs to a component."""
        return stored[component[0] if stored.ndim == 4 else ..., component[1], :, :]

    def store(self, parts, dtype, padding):
        """Return rows in storage."""
        data = np.full((*self.lead, self.capacity, parts[0].shape[-1]), padding, np.float64)
        for (d, _, start, count), part in zip(self.components, parts):
            data[(d,) * (self.outer > 0)][start : start + count] = part
        return data.astype(dtype)


class Value:
    """A value: "rows" has an array for each component, the others one array; exactly, and two samples."""

    def __init__(self, kind, dtype, samples):
        self.kind, self.dtype, self.samples = kind, jnp.dtype(dtype), samples
        self.width = samples[0][0].shape[-1] if kind == "rows" else samples[0].shape[-1]

    def flat(self, k):
        sample = self.samples[k]
        return np.concatenate([x.ravel() for x in sample]) if self.kind == "rows" else sample.ravel()

    def error(self):
        return max(np.abs(self.flat(k) - self.flat(0)).max(initial=0.0) for k in (1, 2))

    def largest(self):
        return np.abs(self.flat(0)).max(initial=0.0)


class Step:
    """f of the values numbered `operands`, row by row, cast to `dtype`; `form` says how the user writes it."""

    def __init__(self, f, operands, dtype, kind, form="map"):
        self.f, self.operands, self.dtype, self.kind, self.form = f, operands, jnp.dtype(dtype), kind, form

    def jax(self, operands, wide):
        dtype = jnp.dtype("float64") if wide else self.dtype
        if self.form == "fold":
            return self.f[0](*operands)[..., None, :].astype(dtype)
        if self.form == "group":
            return self.f[0](*operands)
        if self.kind != "rows":
            return self.f(jnp, *operands).astype(dtype)
        if self.form == "operator":
            result = self.f(jnp, *operands)
            return result.replace(data=result.data.astype(dtype))
        if self.form == "ids":
            x, y = operands
            ids, mask = (jnp.expand_dims(a, -1) for a in (x.row_ids(), x.row_mask()))
            return x.replace(data=jnp.where(mask, self.f(jnp, x.data, y.data, ids), 0).astype(dtype))
        return jf.nested.map(lambda *xs: self.f(jnp, *xs).astype(dtype), *operands)

    def numpy(self, layout, values, samples):
        """Return the result for a sample of each operand, component by component."""
        if self.form in ("fold", "group"):
            parts = [self.f[1](x) for x in samples[0]]
            return parts if self.form == "group" else np.stack(parts).reshape(*layout.lead, layout.groups, 1, -1)
        if self.kind != "rows":
            return self.f(np, *samples)
        result = []
        for i, component in enumerate(layout.components):
            own = [
                x[i] if v.kind == "rows" else layout.of(component, x) if v.kind == "groups" else x
                for v, x in zip(values, samples)
            ]
            result.append(self.f(np, *own, *([component[1]] if self.form == "ids" else [])))
        return result


class Ragged(Shrinks):
    """Steps chosen from a seed. `run` computes them with JAX, from `arguments`."""

    def __init__(self, seed, steps=8, dtypes=("float32", "bfloat16")):
        self.seed, self.steps = seed, []
        rng = self.rng = np.random.default_rng(seed)
        self.again = np.random.default_rng(seed)
        layout = self.layout = Layout(rng)
        h = int(rng.choice(WIDTHS))
        per_group = layout.lead if layout.outer and not layout.shared else ()
        dtype = str(rng.choice(dtypes))
        self.pool = [
            self.given("rows", dtypes[0], h),
            self.given("rows", dtype, int(rng.choice([h, h, 1]))),
            self.given("groups", dtype, (*per_group, layout.groups, 1, h)),
            self.given("groups", dtypes[0], (*per_group, layout.groups, 1, 1)),
            self.given("dense", dtypes[0], (h,)),
        ]
        self.inputs = len(self.pool)
        self.arguments = [self.as_jax(i, np.nan) for i in range(self.inputs)]
        while len(self.steps) < steps:
            self.add(self.choose())
        self.outputs = sorted({len(self.pool) - 1, int(rng.integers(self.inputs, len(self.pool)))})

    def given(self, kind, dtype, shape):
        def sample(shape):
            return self.rng.standard_normal(shape).astype(jnp.dtype(dtype)).astype(np.float64)

        exact = [sample((c[3], shape)) for c in self.layout.components] if kind == "rows" else sample(shape)
        return Value(kind, dtype, [exact] * 3)

    def as_jax(self, i, padding=0.0):
        value, layout = self.pool[i], self.layout
        if value.kind != "rows":
            return jnp.asarray(value.samples[0].astype(value.dtype))
        data = jnp.asarray(layout.store(value.samples[0], value.dtype, padding))
        starts = None if layout.starts is None else jnp.asarray(layout.starts)
        return jf.NestedTensor(data, jnp.asarray(layout.extents), starts, ragged_dim=int(layout.outer > 0))

    def pick(self, kinds=("rows",), width=None):
        fit = [i for i, v in enumerate(self.pool) if v.kind in kinds and width in (None, v.width)]
        return int(self.rng.choice(fit + fit[-3:])) if fit else None

    def choose(self):
        rng = self.rng
        kind = rng.choice(
            ["unary", "binary", "binary", "operator", "operator", "rows", "fold", "ids", "cast", "outside"]
            + ["group fold", "group fold", "group"]
        )
        x = self.pick(("groups", "dense") if kind == "outside" else ("rows",))
        value = self.pool[x]
        if kind in ("unary", "outside"):
            return Step(UNARY[int(rng.integers(len(UNARY)))], [x], value.dtype, value.kind)
        if kind == "group fold":
            if self.layout.outer and self.layout.shared:
                return None  # per-group values of outer indices that share a layout are no operands of rows
            return Step(GROUP_FOLDS[int(rng.integers(len(GROUP_FOLDS)))], [x], value.dtype, "groups", "fold")
        if kind == "group":
            return Step((jf.nested.softmax, softmax), [x], value.dtype, "rows", "group")
        if kind in ("binary", "operator"):
            y = self.pick(("rows", "groups", "groups", "dense"))
            if {1, value.width, self.pool[y].width} != {1, max(value.width, self.pool[y].width)}:
                return None
            dtype = jnp.promote_types(value.dtype, self.pool[y].dtype)
            functions = BINARY if kind == "binary" else OPERATORS
            form = "map" if kind == "binary" else "operator"
            return Step(functions[int(rng.integers(len(functions)))], [x, y], dtype, "rows", form)
        if kind == "rows":
            f = ROWS[int(rng.integers(len(ROWS)))]
            return Step(lambda xp, x, again: f(xp, x, again, -1), [x, x], value.dtype, "rows")
        if kind == "fold":
            return Step(FOLDS[int(rng.integers(len(FOLDS)))], [x], value.dtype, "rows")
        if kind == "ids":
            y = self.pick(width=value.width)
            if self.pool[y].dtype != value.dtype:
                return None
            n = int(rng.choice([2, 3]))
            return Step(lambda xp, x, y, ids: xp.where(ids % n == 0, x, y), [x, y], value.dtype, "rows", "ids")
        return Step(lambda xp, x: x, [x], self.pool[int(rng.integers(2))].dtype, "rows")

    def add(self, step):
        if step is None:
            return
        values, eps = [self.pool[i] for i in step.operands], ROUNDING[step.dtype.name]
        with np.errstate(all="ignore"):
            exact, *noisy = [step.numpy(self.layout, values, self.samples(step, values, k, eps)) for k in range(3)]
        value = Value(step.kind, step.dtype, [exact, *(self.noise(x, eps) for x in noisy)])
        largest = value.largest()
        if not math.isfinite(largest) or largest > LARGEST or value.error() > MOST_NOISE * max(1.0, largest):
            return
        self.pool.append(value)
        self.steps.append(step)

    def samples(self, step, values, k, eps):
        """Return sample k of each operand; where one is there twice, they differ by its rounding."""
        samples = [v.samples[k] for v in values]
        twice = k > 0 and len(set(step.operands)) < len(samples)
        return [self.noise(x, eps, self.again) for x in samples] if twice else samples

    def noise(self, x, eps, rng=None):
        if isinstance(x, list):
            return [self.noise(part, eps, rng) for part in x]
        return x * (1 + eps * (rng or self.rng).uniform(-1, 1, x.shape))

    def evaluate(self, arguments, wide=False, given=()):
        """Return all values; those in `given`, a dict, are not computed."""
        given, pool = dict(given), list(arguments)
        for step in self.steps:
            i = len(pool)
            pool.append(given[i] if i in given else step.jax([pool[k] for k in step.operands], wide))
        return pool

    def run(self, arguments, wide=False):
        pool = self.evaluate(arguments, wide)
        return [pool[i] for i in self.outputs]

    def wrong(self, got, i):
        """Return whether a result differs from value `i` by more than rounding, or is not zero in padding rows."""
        value = self.pool[i]
        rows = value.kind == "rows"
        want = self.layout.store(value.samples[0], np.float64, 0.0) if rows else value.samples[0]
        data = np.asarray(got.data if rows else got)
        if data.shape != want.shape or data.dtype != value.dtype:
            return f"{data.dtype}{list(data.shape)}, expected {value.dtype}{list(want.shape)}"
        data = data.astype(np.float64)
        if rows:
            ones = [np.ones_like(part) for part in value.samples[0]]
            if (data[self.layout.store(ones, np.float64, 0.0) == 0] != 0).any():
                return "a padding row is not zero"
        allowed = NOISES * value.error() + 8 * ROUNDING[value.dtype.name] * max(value.largest(), 1e-3)
        error = np.abs(data - want).max(initial=0)
        return "" if error <= allowed else f"off by {error:.3g}, allowed {allowed:.3g}"  # NaN is wrong

    # A failing program, made small.

    def report(self):
        """Return the smallest failing part of the program as text; without one, what is known."""
        layout = f"extents {self.layout.extents.tolist()}, starts {self.layout.starts}, rows {self.layout.capacity}"
        if found := self.smallest_failure():
            i, given, why = found
            return f"seed {self.seed}, value {i}: {why}\n{layout}\n{self.text(self.only(i, given), given)}"
        return f"seed {self.seed} fails only as a whole\n{layout}"


def float_inputs(arguments):
    """Return the arrays that have derivatives, and a function that puts others in their place."""
    leaves, tree = jax.tree.flatten(arguments)
    at = [i for i, x in enumerate(leaves) if is_float(x.dtype)]

    def back(values):
        merged = list(leaves)
        for i, value in zip(at, values):
            merged[i] = value
        return jax.tree.unflatten(tree, merged)

    return [leaves[i] for i in at], back
