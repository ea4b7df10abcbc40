"""Random fusions of nested values, op by op in the builder, with a loop over components in numpy beside them."""

import numpy as np

import jax_fuser as jf

UNARY = {"neg": np.negative, "tanh": np.tanh, "sin": np.sin, "abs": np.abs}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum}
FOLDS = {"sum": (np.sum, 0.0), "max": (np.max, -np.inf), "min": (np.min, np.inf)}
PRODUCTS = {"prod": (np.prod, 1.0)}
LARGEST = 100  # product of what exceeds one


class Nested:
    """A value of the builder with its axes in the order [component, rows, dense..], and each component's array."""

    def __init__(self, value, parts):
        self.value, self.parts = value, parts

    @property
    def dense(self):
        return self.parts[0].shape[1:]


class Program:
    """`fusion`, its `inputs`, and `want`, one array for each output.

    `size`: the largest number that they are computed with. The terms of a sum count together: what they cancel to is
    as wrong as they are, however small it is. `products`: whether folds may multiply.
    """

    def __init__(self, seed, products=False):
        self.folds = FOLDS | PRODUCTS if products else FOLDS
        self.rng = np.random.default_rng(seed)
        rng = self.rng
        self.groups, self.rows = int(rng.integers(1, 6)), int(rng.choice([1, 7, 20, 150]))
        sizes = rng.multinomial(int(rng.integers(0, self.rows + 1)), rng.dirichlet(np.full(self.groups, 0.5)))
        self.sizes = sizes.astype(np.int32)
        self.starts = (np.cumsum(self.sizes) - self.sizes).astype(np.int32)
        self.b, self.inputs, self.want = jf.ir.Builder("random"), [self.starts, self.sizes], []
        self.left, self.size = [], 1.0
        self.s = self.b.input("starts", "s32", [self.groups])
        self.e = self.b.input("sizes", "s32", [self.groups])
        dense = [int(n) for n in rng.choice([1, 2, 3, 4, 8, 18], int(rng.integers(0, 3)))]
        self.values = [self.partitioned(dense) for _ in range(int(rng.integers(1, 3)))]
        for _ in range(int(rng.integers(1, 7))):
            self.values.append(self.step(self.pick()))
            self.note(self.values[-1].parts)
        for value in self.values[-int(rng.integers(1, 3)) :]:
            self.leave(value)
        self.fusion = self.b.finish()

    def note(self, parts):
        self.size = max(self.size, *(np.abs(p[np.isfinite(p)]).max(initial=0.0) for p in parts))

    def fold(self, parts):
        """Return which fold to take."""
        op = str(self.rng.choice(list(self.folds)))
        large = max(np.maximum(np.abs(p), 1).prod() for p in parts)
        return "sum" if op == "prod" and not large < LARGEST else op

    def folded(self, op, parts, axis):
        """Return each part folded."""
        fold, nothing = self.folds[op]
        if op == "sum":
            self.note([np.abs(p).sum(axis) for p in parts])
        if op == "prod":  # a factor is as wrong as the size says, and the others multiply that
            self.size *= LARGEST
        return [fold(p, axis=axis, initial=nothing) for p in parts]

    def pick(self):
        return self.values[-1 - int(self.rng.integers(min(3, len(self.values))))]

    def partitioned(self, dense):
        x = self.rng.uniform(-1, 1, (self.rows, *dense)).astype(np.float32)
        x[self.sizes.sum() :] = np.nan
        value = self.b.input("x", "f32", list(x.shape))
        self.inputs.append(x)
        parts = [x[s : s + n].astype(np.float64) for s, n in zip(self.starts, self.sizes)]
        return Nested(self.b.partition(value, self.s, self.e, 0, self.rows), parts)

    def shape(self, dense):
        return [self.groups, self.rows, *dense]

    def step(self, x):
        rng, b, dense = self.rng, self.b, x.dense
        kind = rng.choice(["unary", "binary", "group", "fold", "centre", "slice", "pad", "concat", "reshape", "turn"])
        rank = len(dense)
        axis = int(rng.integers(rank)) if rank else 0
        if kind == "binary":
            same = [y for y in self.values if y.dense == dense]
            y, op = same[int(rng.integers(len(same)))], str(rng.choice(list(BINARY)))
            return Nested(b.pointwise(op, [x.value, y.value]), [BINARY[op](p, q) for p, q in zip(x.parts, y.parts)])
        if kind == "group":
            w = rng.uniform(-1, 1, (self.groups, *dense)).astype(np.float32)
            self.inputs.append(w)
            value = b.input("w", "f32", list(w.shape))
            like = b.broadcast_like(value, x.value, [0, *range(2, 2 + rank)])
            return Nested(b.pointwise("mul", [x.value, like]), [p * v for p, v in zip(x.parts, w)])
        if kind in ("fold", "centre") and rank:
            op = self.fold(x.parts)
            folded = b.reduce(f"reduce_{op}", x.value, [2 + axis])
            parts = self.folded(op, x.parts, 1 + axis)
            if kind == "fold":
                return Nested(folded, parts)
            kept = [0, 1, *(2 + a for a in range(rank) if a != axis)]
            back = b.broadcast(folded, self.shape(dense), kept)
            wide = [np.expand_dims(q, 1 + axis) for q in parts]
            return Nested(b.pointwise("sub", [x.value, back]), [p - q for p, q in zip(x.parts, wide)])
        if kind == "slice" and rank:
            first = int(rng.integers(dense[axis]))
            stride = int(rng.integers(1, 3))
            count = int(rng.integers(1, (dense[axis] - first - 1) // stride + 2))
            starts, strides, counts = [0] * (2 + rank), [1] * (2 + rank), self.shape(dense)
            starts[2 + axis], strides[2 + axis], counts[2 + axis] = first, stride, count
            at = (slice(None),) * (1 + axis) + (slice(first, first + (count - 1) * stride + 1, stride),)
            return Nested(b.slice(x.value, starts, strides, counts), [p[at] for p in x.parts])
        if kind == "pad" and rank:
            low, high = int(rng.integers(-1, 3)), int(rng.integers(0, 3))
            if dense[axis] + min(low, 0) < 1:
                low = 0
            lows, highs = [0] * (2 + rank), [0] * (2 + rank)
            lows[2 + axis], highs[2 + axis] = low, high
            wide = [(0, 0)] * (1 + rank)
            wide[1 + axis] = (max(low, 0), high)
            at = (slice(None),) * (1 + axis) + (slice(max(-low, 0), None),)
            padding = b.constant("f32", 0.5)
            parts = [np.pad(p[at], wide, constant_values=0.5) for p in x.parts]
            return Nested(b.pad(x.value, lows, highs, padding), parts)
        if kind == "concat" and rank:
            fits = [y for y in self.values if len(y.dense) == rank]
            fits = [y for y in fits if all(a == axis or m == n for a, (m, n) in enumerate(zip(y.dense, dense)))]
            y = fits[int(rng.integers(len(fits)))]
            parts = [np.concatenate([p, q], axis=1 + axis) for p, q in zip(x.parts, y.parts)]
            return Nested(b.concat([x.value, y.value], 2 + axis), parts)
        if kind == "reshape" and rank:
            total = int(np.prod(dense))
            divisors = [n for n in range(1, total + 1) if total % n == 0]
            first = int(rng.choice(divisors))
            to = [first, total // first] if rng.random() < 0.7 else [total]
            try:
                return Nested(b.reshape(x.value, self.shape(to)), [p.reshape(len(p), *to) for p in x.parts])
            except jf.UserError as error:
                assert "reshape before partition" in str(error)
        if kind == "turn" and rank == 2:
            return Nested(b.transpose(x.value, [0, 1, 3, 2]), [p.transpose(0, 2, 1) for p in x.parts])
        op = str(rng.choice(list(UNARY)))
        return Nested(b.pointwise(op, [x.value]), [UNARY[op](p) for p in x.parts])

    def leave(self, x):
        b, rng = self.b, self.rng
        kind = rng.choice(["combine", "fold", "all", "select", "rows"])
        rank = 2 + len(x.dense)
        if kind == "combine":
            order = [int(a) for a in rng.permutation(rank)]
            turned = b.transpose(b.transpose(x.value, order), list(np.argsort(order)))
            self.output(b.combine(turned, self.s, self.rows + 2), self.whole(x.parts, self.rows + 2))
        elif kind == "fold":
            op = self.fold(x.parts)
            dims = [1, *(2 + a for a in range(len(x.dense)) if rng.random() < 0.5)]
            want = self.folded(op, x.parts, tuple(d - 1 for d in dims))
            self.output(b.reduce(f"reduce_{op}", x.value, dims), np.stack(want))
        elif kind == "all":
            [whole] = self.folded("sum", [np.concatenate(x.parts)], 0)
            self.output(b.reduce("reduce_sum", x.value, [0, 1]), whole)
        elif kind == "select":
            g = int(rng.integers(self.groups))
            self.output(b.select(x.value, g), self.whole([x.parts[g]], self.rows, [0]))
        else:
            first = int(rng.integers(self.rows))
            count = int(rng.integers(1, self.rows - first + 1))
            some = b.slice(x.value, [0, first] + [0] * (rank - 2), [1] * rank, [self.groups, count, *x.dense])
            self.output(
                b.reduce("reduce_sum", some, [1]),
                np.stack(self.folded("sum", [p[first : first + count] for p in x.parts], 0)),
            )

    def whole(self, parts, rows, starts=None):
        out = np.zeros((rows, *parts[0].shape[1:]))
        for s, p in zip(self.starts if starts is None else starts, parts):
            out[s : s + len(p)] = p
        return out

    def output(self, value, want):
        if value not in self.left:  # a value is one output
            self.b.output(value)
            self.left.append(value)
            self.want.append(want)

    def operands(self):
        """Return the inputs in the fusion's order."""
        named = {"starts": self.starts, "sizes": self.sizes}
        given = iter(self.inputs[2:])
        return [named[name] if name in named else next(given) for name in self.fusion.inputs]
